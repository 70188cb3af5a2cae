import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends a message in a transaction for each of --keys (separated by commas), and ends each as its key says: what begins
 * with "commit" is committed, all else rolled back: --namesrv --topic --keys. Prints "started".
 */
public final class TransactionProducer {
    private TransactionProducer() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        TransactionMQProducer producer = new TransactionMQProducer("transaction_producer");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return message.getKeys().startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return executeLocalTransaction(message, null);
            }
        });
        producer.start();
        System.out.println("started");
        for (String key : options.text("keys").split(",")) {
            Message message = new Message(options.text("topic"), "T", key, key.getBytes(StandardCharsets.UTF_8));
            producer.sendMessageInTransaction(message, null);
        }
        producer.shutdown();
    }
}
