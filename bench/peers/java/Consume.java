import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Drains a topic with a push consumer whose listener does nothing: --namesrv A --topic T --group G --messages N
 * [--pull-batch 32] [--consume-batch 1] [--threads 20] [--orderly] [--trace] [--pop] [--latency] [--warm 0]
 * [--timeout 300].
 * With --latency it prints "started" at its first message. At the end it prints one line of JSON; latency and CPU
 * per message leave out the first --warm messages.
 */
public final class Consume {
    /** A point of the run: nanoseconds of the monotonic clock, of the wall clock, and of CPU since the start. */
    private record Moment(long nanos, long wallMicros, long cpuNanos) {
        static Moment now() {
            return new Moment(System.nanoTime(), micros(), SYSTEM.getProcessCpuTime());
        }
    }

    private static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final int messages;
    private final int warm;
    private final boolean latency;
    private final AtomicLong seen = new AtomicLong();
    private final AtomicLongArray delays;
    private final CountDownLatch done = new CountDownLatch(1);
    private volatile Moment first;
    private volatile Moment marked;
    private volatile Moment last;

    private Consume(int messages, int warm, boolean latency) {
        this.messages = messages;
        this.warm = warm;
        this.latency = latency;
        this.delays = new AtomicLongArray(latency ? messages : 0);
    }

    private void take(List<MessageExt> batch) {
        long now = latency ? micros() : 0;
        int size = batch.size();
        long before = seen.getAndAdd(size);
        if (before == 0) {
            first = Moment.now();
            if (latency) {
                System.out.println("started");
            }
        }
        if (before <= warm && before + size > warm) {
            marked = Moment.now();
        }
        if (latency) {
            for (int i = 0; i < size && before + i < messages; i++) {
                delays.set((int) before + i, now - born(batch.get(i)));
            }
        }
        if (before < messages && before + size >= messages) {
            last = Moment.now();
            done.countDown();
        }
    }

    private static long micros() {
        Instant instant = Instant.now();
        return instant.getEpochSecond() * 1_000_000 + instant.getNano() / 1000;
    }

    /** The moment that Load wrote into the body, in microseconds. */
    private static long born(MessageExt message) {
        byte[] body = message.getBody();
        long value = 0;
        for (int i = 0; i < 16; i++) {
            value = value * 10 + body[i] - '0';
        }
        return value;
    }

    public static void main(String[] argv) throws Exception {
        Args args = new Args(argv);
        Consume state = new Consume(args.number("messages", 100_000), args.number("warm", 0), args.has("latency"));
        int threads = args.number("threads", 20);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.need("group"));
        consumer.setEnableTrace(args.has("trace"));
        consumer.setClientRebalance(!args.has("pop"));
        consumer.setNamesrvAddr(args.need("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPullBatchSize(args.number("pull-batch", 32));
        consumer.setConsumeMessageBatchMaxSize(args.number("consume-batch", 1));
        consumer.setConsumeThreadMin(threads);
        consumer.setConsumeThreadMax(threads);
        consumer.subscribe(args.need("topic"), "*");
        if (args.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                state.take(batch);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                state.take(batch);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        if (!state.done.await(args.number("timeout", 300), TimeUnit.SECONDS)) {
            System.err.println("only " + state.seen.get() + " of " + state.messages + " messages came in time");
            Runtime.getRuntime().halt(1);
        }
        System.out.println(state.line());
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private String line() throws Exception {
        double span = (last.nanos - first.nanos) / 1e9;
        StringBuilder line = new StringBuilder(String.format(Locale.ROOT,
            "{\"peer\":\"java\",\"messages\":%d,\"seconds\":%.4f,\"msgs_per_s\":%.0f,\"first_at\":%.6f,\"last_at\":%.6f,"
                + "\"cpu_s\":%.4f,\"cpu_us_per_msg\":%.3f,\"cpu_us_per_msg_with_start\":%.3f,\"peak_rss_mib\":%.1f",
            messages, span, messages / span, first.wallMicros / 1e6, last.wallMicros / 1e6, last.cpuNanos / 1e9,
            (last.cpuNanos - marked.cpuNanos) / 1e3 / (messages - warm), last.cpuNanos / 1e3 / messages, peakRss()));
        if (latency) {
            long[] sorted = new long[messages - warm];
            for (int i = 0; i < sorted.length; i++) {
                sorted[i] = delays.get(warm + i);
            }
            Arrays.sort(sorted);
            int n = sorted.length;
            line.append(String.format(Locale.ROOT, ",\"latency_ms\":{\"p50\":%.3f,\"p99\":%.3f,\"max\":%.3f}",
                sorted[n / 2] / 1e3, sorted[Math.min(n - 1, (int) (n * 0.99))] / 1e3, sorted[n - 1] / 1e3));
        }
        return line.append('}').toString();
    }

    private static double peakRss() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM")) {
                return Double.parseDouble(line.replaceAll("\\D", "")) / 1024;
            }
        }
        return 0;
    }
}
