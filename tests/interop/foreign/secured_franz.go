// franz-go on secured listeners. A line of standard input is a task, a line of standard output its result, both JSON: see secured_clients.py.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type task struct {
	Bootstrap, Protocol, Mechanism, Username, Password, Token, Ca, Certificate, Key, Topic, Group string
	Count                                                                                         int
}

func mechanism(of task) sasl.Mechanism {
	switch of.Mechanism {
	case "PLAIN":
		return plain.Auth{User: of.Username, Pass: of.Password}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: of.Username, Pass: of.Password}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: of.Username, Pass: of.Password}.AsSha512Mechanism()
	default:
		return oauth.Auth{Token: of.Token}.AsMechanism()
	}
}

func security(of task) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(of.Bootstrap), kgo.RecordRetries(1), kgo.RequestRetries(1)}
	if strings.HasSuffix(of.Protocol, "SSL") {
		pem, err := os.ReadFile(of.Ca)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		config := &tls.Config{RootCAs: roots}
		if of.Certificate != "" {
			own, err := tls.LoadX509KeyPair(of.Certificate, of.Key)
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{own}
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if of.Mechanism != "" {
		options = append(options, kgo.SASL(mechanism(of)))
	}
	return options, nil
}

func run(of task) (values []string, err error) {
	values = []string{}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	options, err := security(of)
	if err != nil {
		return values, err
	}
	producer, err := kgo.NewClient(append(options, kgo.DefaultProduceTopic(of.Topic))...)
	if err != nil {
		return values, err
	}
	defer producer.Close()
	for number := range of.Count {
		record := kgo.StringRecord(fmt.Sprintf("record %d", number))
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return values, fmt.Errorf("produce: %w", err)
		}
	}
	options = append(options, kgo.ConsumerGroup(of.Group), kgo.ConsumeTopics(of.Topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(200*time.Millisecond))
	consumer, err := kgo.NewClient(options...)
	if err != nil {
		return values, err
	}
	defer consumer.Close()
	for len(values) < of.Count {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return values, fmt.Errorf("consume: %w", err)
		}
		fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	}
	return values, consumer.CommitUncommittedOffsets(ctx)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var next task
		if err := json.Unmarshal(lines.Bytes(), &next); err != nil {
			panic(err)
		}
		values, err := run(next)
		result := map[string]any{"values": values, "error": ""}
		if err != nil {
			result["error"] = err.Error()
		}
		line, _ := json.Marshal(result)
		fmt.Println(string(line))
	}
}
