// Drains a topic with the push consumer of the RocketMQ Go client; prints one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The Java client's thresholds, where the Go client's own defaults differ (1024 and 1000).
const (
	thresholdForQueue = 1000
	maxSpan           = 2000
)

type moment struct {
	at         time.Time
	cpuSeconds float64
}

func now() moment {
	var use syscall.Rusage
	fail(syscall.Getrusage(syscall.RUSAGE_SELF, &use))
	return moment{time.Now(), float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9}
}

// drain counts the messages; its moments are each written once.
type drain struct {
	messages, warm      int64
	latency             bool
	seen                atomic.Int64
	first, marked, last moment
	delays              []int64
	done                chan struct{}
}

func (d *drain) take(_ context.Context, batch ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	size := int64(len(batch))
	after := d.seen.Add(size)
	before := after - size
	if before == 0 {
		d.first = now()
		if d.latency {
			fmt.Println("started")
		}
	}
	if before <= d.warm && after > d.warm {
		d.marked = now()
	}
	if d.latency {
		at := time.Now().UnixMicro()
		for i, message := range batch {
			if number := before + int64(i); number < d.messages {
				d.delays[number] = at - born(message)
			}
		}
	}
	if before < d.messages && after >= d.messages {
		d.last = now()
		close(d.done)
	}
	return consumer.ConsumeSuccess, nil
}

// born is the moment that the load program wrote into the body, in microseconds.
func born(message *primitive.MessageExt) int64 {
	value, err := strconv.ParseInt(string(message.Body[:16]), 10, 64)
	fail(err)
	return value
}

func (d *drain) line() map[string]any {
	span := d.last.at.Sub(d.first.at).Seconds()
	n := float64(d.messages)
	line := map[string]any{
		"peer": "go", "messages": d.messages, "seconds": round(span, 4), "msgs_per_s": round(n/span, 0),
		"first_at": float64(d.first.at.UnixMicro()) / 1e6, "last_at": float64(d.last.at.UnixMicro()) / 1e6,
		"cpu_s":                     round(d.last.cpuSeconds, 4),
		"cpu_us_per_msg":            round((d.last.cpuSeconds-d.marked.cpuSeconds)*1e6/float64(d.messages-d.warm), 3),
		"cpu_us_per_msg_with_start": round(d.last.cpuSeconds*1e6/n, 3),
		"peak_rss_mib":              round(peakRSS(), 1),
		"go":                        runtime.Version(),
	}
	if d.latency {
		sorted := d.delays[d.warm:]
		sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
		count := len(sorted)
		line["latency_ms"] = map[string]float64{
			"p50": float64(sorted[count/2]) / 1000,
			"p99": float64(sorted[min(count-1, int(float64(count)*0.99))]) / 1000,
			"max": float64(sorted[count-1]) / 1000,
		}
	}
	return line
}

func main() {
	namesrv := flag.String("namesrv", "", "name server")
	topic := flag.String("topic", "", "topic")
	group := flag.String("group", "", "consumer group")
	messages := flag.Int64("messages", 100000, "messages to take")
	pullBatch := flag.Int("pull-batch", 32, "messages in a pull")
	consumeBatch := flag.Int("consume-batch", 1, "messages in a call of the listener")
	threads := flag.Int("threads", 20, "goroutines that consume")
	orderly := flag.Bool("orderly", false, "one batch of a queue at a time, the queue locked at the broker")
	latency := flag.Bool("latency", false, "report the delay from making to consuming")
	warm := flag.Int64("warm", 0, "messages at the start that latency and CPU per message leave out")
	timeout := flag.Int("timeout", 300, "seconds")
	flag.Parse()
	rlog.SetLogLevel("fatal")

	d := &drain{messages: *messages, warm: *warm, latency: *latency, done: make(chan struct{})}
	if *latency {
		d.delays = make([]int64, *messages)
	}
	push, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithInstance(fmt.Sprintf("peer-%d", os.Getpid())),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithPullBatchSize(int32(*pullBatch)),
		consumer.WithConsumeMessageBatchMaxSize(*consumeBatch),
		consumer.WithConsumeGoroutineNums(*threads),
		consumer.WithPullThresholdForQueue(thresholdForQueue),
		consumer.WithConsumeConcurrentlyMaxSpan(maxSpan),
		consumer.WithConsumerOrder(*orderly),
	)
	fail(err)
	fail(push.Subscribe(*topic, consumer.MessageSelector{}, d.take))
	fail(push.Start())
	select {
	case <-d.done:
	case <-time.After(time.Duration(*timeout) * time.Second):
		fail(fmt.Errorf("only %d of %d messages came in time", d.seen.Load(), *messages))
	}
	fail(json.NewEncoder(os.Stdout).Encode(d.line()))
}

func peakRSS() float64 {
	text, err := os.ReadFile("/proc/self/status")
	fail(err)
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmHWM:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			fail(err)
			return kib / 1024
		}
	}
	return 0
}

func round(value float64, digits int) float64 {
	result, _ := strconv.ParseFloat(strconv.FormatFloat(value, 'f', digits, 64), 64)
	return result
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}
