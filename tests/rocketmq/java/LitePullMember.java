import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A DefaultLitePullConsumer that subscribes, and commits after each poll what LedgerHandler wrote down: --namesrv --topic
 * --group --ledger FILE [--batch 10] [--member NAME]. Prints "started NAME"; SIGTERM ends it with shutdown().
 */
public final class LitePullMember {
    private LitePullMember() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        String name = options.text("member", "lite-pull");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        consumer.setPullBatchSize(options.number("batch", 10));
        consumer.subscribe(options.text("topic"), "*");
        LedgerHandler handler = new LedgerHandler(options, () -> name);
        consumer.start();
        Thread polling = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            polling.interrupt();
            consumer.shutdown();
        }));
        System.out.println("started " + name);
        while (consumer.isRunning()) {
            List<MessageExt> batch = consumer.poll(1_000);
            if (!batch.isEmpty() && handler.handle(batch)) {
                consumer.commitSync();
            }
        }
    }
}
