// Sarama on secured listeners. A line of standard input is a task, a line of standard output its result, both JSON: see secured_clients.py.
// Sarama leaves SCRAM to its caller, which here uses the module that its own example uses.
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

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

type task struct {
	Bootstrap, Protocol, Mechanism, Username, Password, Token, Ca, Certificate, Key, Topic, Group string
	Count                                                                                         int
}

type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (c *scramClient) Begin(user, password, authorization string) error {
	client, err := c.hash.NewClient(user, password, authorization)
	if err == nil {
		c.conversation = client.NewConversation()
	}
	return err
}

func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

func (c *scramClient) Done() bool { return c.conversation.Done() }

type fixedToken string

func (t fixedToken) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(t)}, nil
}

func configuration(of task) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max, config.Metadata.Retry.Max = 0, 0
	config.Consumer.Group.Rebalance.Retry.Max = 0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.MaxWaitTime = 200 * time.Millisecond
	if strings.HasSuffix(of.Protocol, "SSL") {
		pem, err := os.ReadFile(of.Ca)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		config.Net.TLS.Enable, config.Net.TLS.Config = true, &tls.Config{RootCAs: roots}
		if of.Certificate != "" {
			own, err := tls.LoadX509KeyPair(of.Certificate, of.Key)
			if err != nil {
				return nil, err
			}
			config.Net.TLS.Config.Certificates = []tls.Certificate{own}
		}
	}
	if of.Mechanism != "" {
		sasl := &config.Net.SASL
		sasl.Enable, sasl.User, sasl.Password = true, of.Username, of.Password
		sasl.Mechanism = sarama.SASLMechanism(of.Mechanism)
		switch of.Mechanism {
		case "SCRAM-SHA-256":
			sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA256} }
		case "SCRAM-SHA-512":
			sasl.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &scramClient{hash: scram.SHA512} }
		case "OAUTHBEARER":
			sasl.TokenProvider = fixedToken(of.Token)
		}
	}
	return config, nil
}

type handler struct {
	count  int
	values []string
	done   context.CancelFunc
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		h.values = append(h.values, string(message.Value))
		session.MarkMessage(message, "")
		if len(h.values) == h.count {
			session.Commit()
			h.done()
		}
	}
	return nil
}

func run(of task) ([]string, error) {
	config, err := configuration(of)
	if err != nil {
		return []string{}, err
	}
	producer, err := sarama.NewSyncProducer([]string{of.Bootstrap}, config)
	if err != nil {
		return []string{}, fmt.Errorf("produce: %w", err)
	}
	defer producer.Close()
	for number := range of.Count {
		value := sarama.StringEncoder(fmt.Sprintf("record %d", number))
		if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: of.Topic, Value: value}); err != nil {
			return []string{}, fmt.Errorf("produce: %w", err)
		}
	}
	group, err := sarama.NewConsumerGroup([]string{of.Bootstrap}, of.Group, config)
	if err != nil {
		return []string{}, fmt.Errorf("consume: %w", err)
	}
	defer group.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	reader := &handler{count: of.Count, values: []string{}, done: cancel}
	if err := group.Consume(ctx, []string{of.Topic}, reader); err != nil {
		return reader.values, fmt.Errorf("consume: %w", err)
	}
	return reader.values, nil
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
