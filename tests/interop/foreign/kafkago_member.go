// A member of a group that is kafka-go. Tells what it does as members/member_output.py describes, and leaves on SIGTERM.
//
//	member BOOTSTRAP GROUP TOPIC SETTINGS
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/segmentio/kafka-go"
)

var output sync.Mutex

func tell(what string, content any) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(map[string]any{what: content})
	os.Stdout.Write(append(line, '\n'))
}

// Reads a partition until the generation ends.
func read(ctx context.Context, generation *kafka.Generation, bootstrap, topic string, part kafka.PartitionAssignment) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, Partition: part.ID, MaxWait: 200 * time.Millisecond,
	})
	defer reader.Close()
	if err := reader.SetOffset(part.Offset); err != nil {
		return
	}
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return
		}
		tell("read", []int64{int64(part.ID), message.Offset})
		end := message.Offset + 1
		if err := generation.CommitOffsets(map[string]map[int]int64{topic: {part.ID: end}}); err != nil {
			tell("refused", err.Error())
		} else {
			tell("committed", [][]int64{{int64(part.ID), end}})
		}
	}
}

func main() {
	bootstrap, group, topic := os.Args[1], os.Args[2], os.Args[3]
	settings := map[string]any{}
	if err := json.Unmarshal([]byte(os.Args[4]), &settings); err != nil {
		panic(err)
	}
	milliseconds := func(name string) time.Duration { return time.Duration(settings[name].(float64)) * time.Millisecond }
	member, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: group, Brokers: []string{bootstrap}, Topics: []string{topic}, StartOffset: kafka.FirstOffset,
		GroupBalancers: []kafka.GroupBalancer{kafka.RangeGroupBalancer{}, kafka.RoundRobinGroupBalancer{}},
		SessionTimeout: milliseconds("session.timeout.ms"), HeartbeatInterval: milliseconds("heartbeat.interval.ms"),
		JoinGroupBackoff: 500 * time.Millisecond,
	})
	if err != nil {
		panic(err)
	}
	leaving, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for {
		generation, err := member.Next(leaving)
		if err != nil {
			if leaving.Err() != nil || errors.Is(err, kafka.ErrGroupClosed) {
				break
			}
			tell("refused", err.Error())
			continue
		}
		numbers := []int{}
		for _, part := range generation.Assignments[topic] {
			numbers = append(numbers, part.ID)
		}
		tell("assigned", numbers)
		var readers sync.WaitGroup
		for _, part := range generation.Assignments[topic] {
			readers.Add(1)
			generation.Start(func(ctx context.Context) {
				defer readers.Done()
				read(ctx, generation, bootstrap, topic, part)
			})
		}
		generation.Start(func(ctx context.Context) {
			<-ctx.Done()
			readers.Wait()
			tell("revoked", numbers)
		})
	}
	if err := member.Close(); err != nil {
		panic(err)
	}
}
