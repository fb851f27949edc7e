// franz-go against the server under test: makes the topic, writes COUNT records with each codec, reads them back, prints what it found.
//
//	client BOOTSTRAP TOPIC COUNT
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check(holds bool, what string) {
	if !holds {
		must(fmt.Errorf("does not hold: %s", what))
	}
}

func main() {
	bootstrap, topic := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	seeds := kgo.SeedBrokers(bootstrap)
	adminClient, err := kgo.NewClient(seeds)
	must(err)
	defer adminClient.Close()
	admin := kadm.NewClient(adminClient)
	retention := "3600000"
	made, err := admin.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": &retention}, topic)
	must(err)
	must(made.Err)

	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	for _, name := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		client, err := kgo.NewClient(seeds, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codecs[name]))
		must(err)
		records := make([]*kgo.Record, count)
		for number := range records {
			records[number] = &kgo.Record{
				Key:     []byte(name),
				Value:   bytes.Repeat([]byte(fmt.Sprintf("%s %d ", name, number)), 5),
				Headers: []kgo.RecordHeader{{Key: "number", Value: []byte(strconv.Itoa(number))}},
			}
		}
		must(client.ProduceSync(ctx, records...).FirstErr())
		client.Close()
	}

	from := kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
	consumer, err := kgo.NewClient(seeds, from)
	must(err)
	defer consumer.Close()
	seen := 0
	for seen < count*len(codecs) {
		fetches := consumer.PollFetches(ctx)
		must(fetches.Err0())
		fetches.EachError(func(_ string, _ int32, err error) { must(err) })
		fetches.EachRecord(func(record *kgo.Record) {
			check(record.Offset == int64(seen), fmt.Sprintf("offset %d comes after %d records", record.Offset, seen))
			number := seen % count
			want := bytes.Repeat([]byte(fmt.Sprintf("%s %d ", record.Key, number)), 5)
			check(bytes.Equal(record.Value, want), fmt.Sprintf("the value at %d is %q", seen, want))
			check(string(record.Headers[0].Value) == strconv.Itoa(number), "its header is there")
			seen++
		})
	}

	ends, err := admin.ListEndOffsets(ctx, topic)
	must(err)
	end, _ := ends.Lookup(topic, 0)
	check(end.Offset == int64(seen), "the end is behind the last record")
	configs, err := admin.DescribeTopicConfigs(ctx, topic)
	must(err)
	found := ""
	for _, config := range configs[0].Configs {
		if config.Key == "retention.ms" {
			found = config.MaybeValue()
		}
	}
	check(found == retention, "the topic has its setting")
	fmt.Println("fine", seen)
}
