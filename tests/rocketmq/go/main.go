// A member of many groups that handles nothing: -namesrv A -topic T -instance NAME -groups STRATEGY=GROUP=ROOM+ROOM,...
// [-allocate-queues BROKER:ID,...]. It has each group's queues by that group's strategy. Prints "started" once it is in
// all of them, and logs to NAME.log; SIGTERM ends it with Shutdown().
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
	flag.Parse()
	rlog.SetOutputPath(*instance + ".log")
	rlog.SetLogLevel("warn")

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
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
