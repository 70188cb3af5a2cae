package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// ledger appends a line per event to a file, in the form that ledger.py tells.
type ledger struct {
	file *os.File
	lock sync.Mutex
}

func openLedger(path string) *ledger {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	return &ledger{file: file}
}

func (l *ledger) write(event, key string, queue *primitive.MessageQueue, offset int64, member string, times int32) {
	l.lock.Lock()
	defer l.lock.Unlock()
	_, err := fmt.Fprintf(l.file, "%s\t%s\t%s\t%d\t%d\t%s\t%d\t%d\n", event, key, queue.BrokerName, queue.QueueId, offset,
		member, time.Now().UnixMicro(), times)
	check(err)
}

// produce sends messages with the keys PREFIX0, PREFIX1, … or, with sharding keys, sK.I: as NumberedProducer.java does.
func produce(namesrv, topic, path, prefix string, messages, shardingKeys int) {
	written := openLedger(path)
	sender, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{namesrv}),
		producer.WithGroupName("go_numbered_producer"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
	check(err)
	check(sender.Start())
	fmt.Println("started")
	for number := 0; number < messages; number++ {
		key := prefix + strconv.Itoa(number)
		message := primitive.NewMessage(topic, []byte("from Go")).WithTag("T")
		if shardingKeys > 0 {
			sharding := "s" + strconv.Itoa(number%shardingKeys)
			key = sharding + "." + strconv.Itoa(number/shardingKeys)
			message.WithShardingKey(sharding)
		}
		result, err := sender.SendSync(context.Background(), message.WithKeys([]string{key}))
		check(err)
		written.write("sent", key, result.MessageQueue, result.QueueOffset, "producer", 0)
	}
	check(sender.Shutdown())
}

// consume is a member of one group: the first attempt at each fail-every-th key, by its CRC, fails.
func consume(namesrv, topic, group, instance, path string, orderly bool, failEvery uint32, stop <-chan os.Signal) {
	written := openLedger(path)
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{namesrv}),
		consumer.WithGroupName(group),
		consumer.WithInstance(instance),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(orderly),
		consumer.WithMaxReconsumeTimes(16),
	)
	check(err)
	handler := func(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range batch {
			key := strings.TrimSpace(message.GetKeys())
			written.write("start", key, message.Queue, message.QueueOffset, instance, message.ReconsumeTimes)
			crc := crc32.ChecksumIEEE([]byte(key))
			if failEvery > 0 && crc%failEvery == failEvery-1 && message.ReconsumeTimes == 0 {
				written.write("fail", key, message.Queue, message.QueueOffset, instance, message.ReconsumeTimes)
				if orderly {
					return consumer.SuspendCurrentQueueAMoment, nil
				}
				return consumer.ConsumeRetryLater, nil
			}
			written.write("finish", key, message.Queue, message.QueueOffset, instance, message.ReconsumeTimes)
		}
		return consumer.ConsumeSuccess, nil
	}
	check(member.Subscribe(topic, consumer.MessageSelector{}, handler))
	check(member.Start())
	fmt.Println("started")
	<-stop
	check(member.Shutdown())
}
