// A member of a group that is franz-go. Tells what it does as members/member_output.py describes, and leaves on SIGTERM.
//
//	member BOOTSTRAP GROUP TOPIC SETTINGS
package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var output sync.Mutex

func tell(what string, content any) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(map[string]any{what: content})
	os.Stdout.Write(append(line, '\n'))
}

func main() {
	bootstrap, group, topic := os.Args[1], os.Args[2], os.Args[3]
	settings := map[string]any{}
	if err := json.Unmarshal([]byte(os.Args[4]), &settings); err != nil {
		panic(err)
	}
	milliseconds := func(name string) time.Duration { return time.Duration(settings[name].(float64)) * time.Millisecond }
	told := func(what string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			if len(partitions[topic]) > 0 {
				tell(what, partitions[topic])
			}
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.RangeBalancer(), kgo.RoundRobinBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(milliseconds("session.timeout.ms")), kgo.HeartbeatInterval(milliseconds("heartbeat.interval.ms")),
		kgo.OnPartitionsAssigned(told("assigned")), kgo.OnPartitionsRevoked(told("revoked")), kgo.OnPartitionsLost(told("revoked")),
	)
	if err != nil {
		panic(err)
	}
	leaving, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for leaving.Err() == nil {
		fetches := client.PollRecords(leaving, 25)
		ends := map[int32]int64{}
		fetches.EachRecord(func(record *kgo.Record) {
			tell("read", []int64{int64(record.Partition), record.Offset})
			ends[record.Partition] = record.Offset + 1
		})
		if len(ends) > 0 {
			if err := client.CommitRecords(context.Background(), fetches.Records()...); err != nil {
				tell("refused", err.Error())
			} else {
				committed := [][]int64{}
				for partition, end := range ends {
					committed = append(committed, []int64{int64(partition), end})
				}
				tell("committed", committed)
			}
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
}
