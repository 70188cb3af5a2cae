import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A member of a group that writes down what it handles: --namesrv --topic --group --ledger FILE [--orderly true]
 * [--batch 1] [--threads 20] [--await-millis 30000] [--member NAME] [--model CLUSTERING] [--access-key K --secret-key S]
 * [--namespace N] [--namespace-v2 N] [--pop false] [--pop-invisible-millis 60000], and LedgerHandler's options. With
 * --pop it asks the broker for its queues, and whether to POP or to PULL.
 * Prints "started CLIENT_ID". SIGTERM ends it with consumer.shutdown(), which waits up to --await-millis for handlers (0
 * is Java's default).
 */
public final class LedgerConsumer {
    private LedgerConsumer() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer( // the one constructor with a hook of 4.x and 5.x
            options.text("group"), hook(options), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setMqClientApiTimeout(30_000); // after 3 s on a busy machine its start fails
        consumer.setNamespace(options.text("namespace", null));
        if (!options.text("namespace-v2", "").isEmpty()) { // by its name, too
            consumer.getClass().getMethod("setNamespaceV2", String.class)
                .invoke(consumer, options.text("namespace-v2"));
        }
        if (options.flag("pop")) { // by its name: the client of 4.x has none
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, (long) options.number("pop-invisible-millis", 60_000));
        }
        // by the value that is there: MessageModel is in another package in 4.x
        consumer.setMessageModel(
            Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), options.text("model", "CLUSTERING")));
        consumer.setConsumeFromWhere(
            ConsumeFromWhere.valueOf(options.text("from-where", "CONSUME_FROM_FIRST_OFFSET")));
        consumer.setConsumeMessageBatchMaxSize(options.number("batch", 1));
        consumer.setConsumeThreadMin(options.number("threads", 20));
        consumer.setConsumeThreadMax(options.number("threads", 20));
        consumer.setAwaitTerminationMillisWhenShutdown(options.number("await-millis", 30_000));
        consumer.subscribe(options.text("topic"), "*");
        LedgerHandler handler = new LedgerHandler(options, () -> clientId(consumer));
        if (options.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (batch, context) ->
                handler.handle(batch) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (batch, context) ->
                handler.handle(batch) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
        consumer.start();
        Runtime.getRuntime().addShutdownHook(new Thread(consumer::shutdown));
        System.out.println("started " + clientId(consumer));
        Thread.currentThread().join();
    }

    private static RPCHook hook(Options options) {
        String key = options.text("access-key", "");
        return key.isEmpty() ? null
            : new AclClientRPCHook(new SessionCredentials(key, options.text("secret-key")));
    }

    private static String clientId(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId();
    }
}
