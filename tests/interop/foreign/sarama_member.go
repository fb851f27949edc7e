// A member of a group that is Sarama. Tells what it does as members/member_output.py describes, and leaves on SIGTERM. It is not told whether a commit
// was taken, so it does not say so.
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

	"github.com/IBM/sarama"
)

var output sync.Mutex

func tell(what string, content any) {
	output.Lock()
	defer output.Unlock()
	line, _ := json.Marshal(map[string]any{what: content})
	os.Stdout.Write(append(line, '\n'))
}

type handler struct{ topic string }

func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	tell("assigned", session.Claims()[h.topic])
	return nil
}

func (h handler) Cleanup(session sarama.ConsumerGroupSession) error {
	session.Commit()
	tell("revoked", session.Claims()[h.topic])
	return nil
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			tell("read", []int64{int64(message.Partition), message.Offset})
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
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
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = milliseconds("session.timeout.ms")
	config.Consumer.Group.Heartbeat.Interval = milliseconds("heartbeat.interval.ms")
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{
		sarama.NewBalanceStrategyRange(), sarama.NewBalanceStrategyRoundRobin(),
	}
	client, err := sarama.NewConsumerGroup([]string{bootstrap}, group, config)
	if err != nil {
		panic(err)
	}
	leaving, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for leaving.Err() == nil {
		if err := client.Consume(leaving, []string{topic}, handler{topic}); err != nil {
			tell("refused", err.Error())
		}
	}
	if err := client.Close(); err != nil {
		panic(err)
	}
}
