import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group that writes down what it handles: --namesrv --topic --group --ledger FILE [--handle-millis 0]
 * [--threads 20] [--await-millis 30000] [--member NAME] [--model CLUSTERING]. Prints "started CLIENT_ID". SIGTERM ends
 * it with consumer.shutdown(), which waits up to --await-millis for handlers (0 is Java's default).
 */
public final class LedgerConsumer {
    private LedgerConsumer() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Ledger ledger = new Ledger(options.text("ledger"));
        String member = options.text("member", "");
        int handleMillis = options.number("handle-millis", 0);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(options.text("instance", consumer.getInstanceName()));
        consumer.setAllocateMessageQueueStrategy(Strategies.of(options));
        // by the value that is there: MessageModel is in another package in 4.x
        consumer.setMessageModel(
            Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), options.text("model", "CLUSTERING")));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(options.number("threads", 20));
        consumer.setConsumeThreadMax(options.number("threads", 20));
        consumer.setAwaitTerminationMillisWhenShutdown(options.number("await-millis", 30_000));
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
            handle(batch, ledger, member.isEmpty() ? clientId(consumer) : member, handleMillis);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(consumer::shutdown));
        System.out.println("started " + clientId(consumer));
        Thread.currentThread().join();
    }

    private static void handle(List<MessageExt> batch, Ledger ledger, String member, int millis) {
        for (MessageExt message : batch) {
            ledger.write("start", message, member);
            try {
                Thread.sleep(millis);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error); // shut down in the middle: not handled
            }
            ledger.write("finish", message, member);
        }
    }

    private static String clientId(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }
}
