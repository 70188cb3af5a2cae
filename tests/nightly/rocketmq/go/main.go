// Members and producers with the Go client: -namesrv A -topic T -instance NAME, and
//
//	-groups STRATEGY=GROUP=ROOM+ROOM,... [-allocate-queues BROKER:ID,...]: a member of many groups that handles nothing, and
//	has each group's queues by that group's strategy;
//	-group G -ledger FILE [-orderly] [-fail-every N]: a member that writes down what it handles;
//	-messages N -ledger FILE [-prefix go-] [-sharding-keys K]: a producer.
//
// Prints "started" once it runs, and logs to NAME.log; SIGTERM ends a member with Shutdown().
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	namesrv := flag.String("namesrv", "", "name server")
	topic := flag.String("topic", "", "topic")
	instance := flag.String("instance", "", "instance name")
	groups := flag.String("groups", "", "STRATEGY=GROUP=ROOM+ROOM,...")
	queues := flag.String("allocate-queues", "", "BROKER:ID,... for by_config")
	group := flag.String("group", "", "the group of a member that handles messages")
	path := flag.String("ledger", "", "what it handles, or what the producer sent")
	orderly := flag.Bool("orderly", false, "handle each queue in order")
	failEvery := flag.Uint("fail-every", 0, "which first attempts fail")
	messages := flag.Int("messages", 0, "how many messages to send")
	prefix := flag.String("prefix", "go-", "of their keys")
	shardingKeys := flag.Int("sharding-keys", 0, "how many sharding keys they have")
	flag.Parse()
	rlog.SetOutputPath(*instance + ".log")
	rlog.SetLogLevel("warn")

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if *messages > 0 {
		produce(*namesrv, *topic, *path, *prefix, *messages, *shardingKeys)
		return
	}
	if *group != "" {
		consume(*namesrv, *topic, *group, *instance, *path, *orderly, uint32(*failEvery), stop)
		return
	}
	var members []rocketmq.PushConsumer
	for _, group := range strings.Split(*groups, ",") {
		parts := strings.Split(group, "=")
		member, err := rocketmq.NewPushConsumer(
			consumer.WithNameServer([]string{*namesrv}),
			consumer.WithGroupName(parts[1]),
			consumer.WithInstance(*instance),
			consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
			consumer.WithStrategy(strategy(parts[0], allocated(*topic, *queues), strings.Split(parts[2], "+"))),
		)
		check(err)
		check(member.Subscribe(*topic, consumer.MessageSelector{}, handle))
		check(member.Start())
		members = append(members, member)
	}
	fmt.Println("started")
	<-stop
	for _, member := range members {
		check(member.Shutdown())
	}
}

func handle(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return consumer.ConsumeSuccess, nil
}

func strategy(name string, queues []*primitive.MessageQueue, rooms []string) consumer.AllocateStrategy {
	switch name {
	case "averagely":
		return consumer.AllocateByAveragely
	case "averagely_by_circle":
		return consumer.AllocateByAveragelyCircle
	case "by_config":
		return consumer.AllocateByConfig(queues)
	case "by_machine_room":
		return consumer.AllocateByMachineRoom(rooms)
	}
	check(fmt.Errorf("Go has no strategy %s, or another one of that name", name))
	return nil
}

func allocated(topic string, text string) []*primitive.MessageQueue {
	var queues []*primitive.MessageQueue
	for _, part := range strings.Split(text, ",") {
		if part == "" {
			continue
		}
		colon := strings.LastIndex(part, ":")
		number, err := strconv.Atoi(part[colon+1:])
		check(err)
		queues = append(queues, &primitive.MessageQueue{Topic: topic, BrokerName: part[:colon], QueueId: number})
	}
	return queues
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go member:", err)
		os.Exit(1)
	}
}
