// Command sarama produces with Sarama's idempotent producer and reads with a group, across the death of the leader.
//
//	sarama BOOTSTRAP TOPIC RECORDS PAUSE_AFTER
//
// After PAUSE_AFTER records it prints "paused" and waits for a line, so that a broker can be killed. In the end it prints the
// values that the group was given, in order of their offsets, as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

type reader struct {
	mutex   sync.Mutex
	values  map[int64]string
	wanted  int
	reached context.CancelFunc
}

func (r *reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			r.mutex.Lock()
			r.values[message.Offset] = string(message.Value)
			if len(r.values) == r.wanted {
				r.reached()
			}
			r.mutex.Unlock()
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	bootstrap, topic := strings.Split(os.Args[1], ","), os.Args[2]
	records, err := strconv.Atoi(os.Args[3])
	check(err)
	pauseAfter, err := strconv.Atoi(os.Args[4])
	check(err)

	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Retry.Max = 100
	config.Producer.Retry.Backoff = 250 * time.Millisecond
	config.Net.MaxOpenRequests = 1
	config.Metadata.Retry.Max = 100
	config.Consumer.Offsets.Initial = sarama.OffsetOldest

	ctx, reached := context.WithCancel(context.Background())
	read := &reader{values: map[int64]string{}, wanted: records, reached: reached}
	group, err := sarama.NewConsumerGroup(bootstrap, topic+"-readers", config)
	check(err)
	var reading sync.WaitGroup
	reading.Add(1)
	go func() {
		defer reading.Done()
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, read); err != nil {
				log.Println(err)
				time.Sleep(250 * time.Millisecond)
			}
		}
	}()

	producer, err := sarama.NewSyncProducer(bootstrap, config)
	check(err)
	const batch = 100
	for first := 0; first < records; first += batch {
		messages := make([]*sarama.ProducerMessage, batch)
		for number := range messages {
			messages[number] = &sarama.ProducerMessage{
				Topic: topic, Partition: 0, Value: sarama.StringEncoder(strconv.Itoa(first + number)),
			}
		}
		check(producer.SendMessages(messages))
		if first+batch == pauseAfter {
			fmt.Println("paused")
			_, err := bufio.NewReader(os.Stdin).ReadString('\n')
			check(err)
		}
	}
	check(producer.Close())
	reading.Wait()
	check(group.Close())

	offsets := make([]int64, 0, len(read.values))
	for offset := range read.values {
		offsets = append(offsets, offset)
	}
	sort.Slice(offsets, func(i, j int) bool { return offsets[i] < offsets[j] })
	inOrder := make([]string, 0, len(read.values))
	for _, offset := range offsets {
		inOrder = append(inOrder, read.values[offset])
	}
	check(json.NewEncoder(os.Stdout).Encode(inOrder))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
