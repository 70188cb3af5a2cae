import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.store.OffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Does to each message what the message says, and writes every attempt down as a line of JSON: --namesrv --group
 * --attempts FILE [--hooks FILE] --subscriptions "TOPIC=TAG or SQL92=EXPRESSION" (a line each), and settings by Java's names;
 * with --pop it asks the broker whether to POP.
 * A message's property `script` has an action for each of its attempts, the last one for all further ones; the first
 * message of a batch decides. Actions, with an argument after a colon, several joined by +: ok, later (with a delay
 * level), ack (with ackIndex), throw, null, sleep (with milliseconds); for orderly consumers also suspend (with
 * milliseconds), commit, rollback. Prints "started CLIENT_ID"; SIGTERM ends it in order.
 */
public final class ScriptedConsumer {
    private final Map<String, Integer> tries = new HashMap<>();
    private final AtomicInteger batches = new AtomicInteger();
    private final AttemptFile attempts;

    private ScriptedConsumer(Options options) throws Exception {
        attempts = new AttemptFile(options.text("attempts"));
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        Options options = new Options(arguments);
        ScriptedConsumer script = new ScriptedConsumer(options);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        if (options.flag("pop")) { // by its name: the client of 4.x has none
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        // by the value that is there: MessageModel is in another package in 4.x
        consumer.setMessageModel(
            Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), options.text("model", "CLUSTERING")));
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf(options.text("from-where", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setConsumeTimestamp(options.text("consume-timestamp", consumer.getConsumeTimestamp()));
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setConsumeThreadMin(options.number("threads", 20));
        consumer.setConsumeThreadMax(options.number("threads", 20));
        consumer.setMaxReconsumeTimes(options.number("max-reconsume-times", -1));
        consumer.setSuspendCurrentQueueTimeMillis(options.number("suspend-millis", 1000));
        consumer.setPullThresholdForQueue(options.number("pull-threshold", 1000));
        consumer.setPersistConsumerOffsetInterval(options.number("persist-millis", 5000));
        // otherwise it may take 30 s: a heartbeat that is skipped leaves the broker without the new subscription, and a
        // new group's retry topic has no route until the next refresh, and no owner until the next rebalance
        consumer.setHeartbeatBrokerInterval(1000);
        consumer.setPollNameServerInterval(1000);
        for (String line : options.text("subscriptions").split("\n")) {
            String[] parts = line.split("=", 3);
            if (parts[1].equals("SQL92")) {
                consumer.subscribe(parts[0], MessageSelector.bySql(parts[2]));
            } else {
                consumer.subscribe(parts[0], parts[2]);
            }
        }
        if (!options.text("hooks", "").isEmpty()) {
            ScriptedHooks.install(consumer, options.text("hooks"));
        }
        if (options.flag("orderly")) {
            boolean autoCommit = options.text("auto-commit", "true").equals("true");
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                context.setAutoCommit(autoCommit);
                return script.orderly(batch, context);
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) script::concurrently);
        }
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> end(consumer)));
        System.out.println(
            "started " + consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        Thread.currentThread().join();
    }

    /** Waits for the broker's answers to the last commits: shutdown() sends them one-way, and may close the connection first. */
    private static void end(DefaultMQPushConsumer consumer) {
        DefaultMQPushConsumerImpl client = consumer.getDefaultMQPushConsumerImpl();
        OffsetStore store = client.getOffsetStore();
        for (MessageQueue queue : client.getRebalanceImpl().getProcessQueueTable().keySet()) {
            long offset = store.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY);
            if (offset >= 0) {
                try {
                    store.updateConsumeOffsetToBroker(queue, offset, false);
                } catch (Exception error) {
                    System.err.println("the last commit of " + queue + " failed: " + error);
                }
            }
        }
        consumer.shutdown();
    }

    private ConsumeConcurrentlyStatus concurrently(List<MessageExt> batch, ConsumeConcurrentlyContext context) {
        ConsumeConcurrentlyStatus status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        for (String step : steps(batch)) {
            String[] parts = step.split(":");
            switch (parts[0]) {
                case "later":
                    status = ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    if (parts.length > 1) {
                        context.setDelayLevelWhenNextConsume(Integer.parseInt(parts[1]));
                    }
                    break;
                case "ack":
                    context.setAckIndex(Integer.parseInt(parts[1]));
                    break;
                case "null":
                    status = null;
                    break;
                default:
                    common(parts);
            }
        }
        return status;
    }

    private ConsumeOrderlyStatus orderly(List<MessageExt> batch, ConsumeOrderlyContext context) {
        ConsumeOrderlyStatus status = ConsumeOrderlyStatus.SUCCESS;
        for (String step : steps(batch)) {
            String[] parts = step.split(":");
            switch (parts[0]) {
                case "suspend":
                    status = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    if (parts.length > 1) {
                        context.setSuspendCurrentQueueTimeMillis(Long.parseLong(parts[1]));
                    }
                    break;
                case "commit":
                    status = ConsumeOrderlyStatus.valueOf("COMMIT");
                    break;
                case "rollback":
                    status = ConsumeOrderlyStatus.valueOf("ROLLBACK");
                    break;
                case "null":
                    status = null;
                    break;
                default:
                    common(parts);
            }
        }
        return status;
    }

    private static void common(String[] parts) {
        switch (parts[0]) {
            case "ok":
                break;
            case "sleep":
                try {
                    Thread.sleep(Long.parseLong(parts[1]));
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
                break;
            case "throw":
                throw new IllegalStateException("as the script says");
            default:
                throw new IllegalArgumentException("no action " + parts[0]);
        }
    }

    /** What to do with a batch, after it was written down; the tries of each message are counted by its keys. */
    private synchronized String[] steps(List<MessageExt> batch) {
        int number = batches.getAndIncrement();
        MessageExt first = batch.get(0);
        for (MessageExt message : batch) {
            attempts.write(number, message);
            tries.merge(message.getTopic() + " " + message.getKeys(), 1, Integer::sum);
        }
        String script = first.getUserProperty("script");
        if (script == null) {
            return new String[0];
        }
        String[] actions = script.split(",");
        int attempt = tries.get(first.getTopic() + " " + first.getKeys()) - 1;
        return actions[Math.min(attempt, actions.length - 1)].split("\\+");
    }
}
