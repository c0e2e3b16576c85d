// Command franz produces with franz-go's idempotent producer and reads with a group, across the death of the leader.
//
//	franz BOOTSTRAP TOPIC RECORDS PAUSE_AFTER
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
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	bootstrap, topic := strings.Split(os.Args[1], ","), os.Args[2]
	records, err := strconv.Atoi(os.Args[3])
	check(err)
	pauseAfter, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(topic))
	check(err)
	defer producer.Close()
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap...),
		kgo.ConsumerGroup(topic+"-readers"),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	check(err)
	defer consumer.Close()

	for number := 0; number < records; number++ {
		producer.Produce(ctx, kgo.StringRecord(strconv.Itoa(number)), func(_ *kgo.Record, err error) { check(err) })
		if number+1 == pauseAfter {
			check(producer.Flush(ctx))
			fmt.Println("paused")
			_, err := bufio.NewReader(os.Stdin).ReadString('\n')
			check(err)
		}
	}
	check(producer.Flush(ctx))

	values := map[int64]string{}
	for len(values) < records {
		fetches := consumer.PollFetches(ctx)
		check(ctx.Err())
		fetches.EachRecord(func(record *kgo.Record) { values[record.Offset] = string(record.Value) })
	}
	check(consumer.CommitUncommittedOffsets(ctx))
	offsets := make([]int64, 0, len(values))
	for offset := range values {
		offsets = append(offsets, offset)
	}
	sort.Slice(offsets, func(i, j int) bool { return offsets[i] < offsets[j] })
	inOrder := make([]string, 0, len(values))
	for _, offset := range offsets {
		inOrder = append(inOrder, values[offset])
	}
	check(json.NewEncoder(os.Stdout).Encode(inOrder))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
