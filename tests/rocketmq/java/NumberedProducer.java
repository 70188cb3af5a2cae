import java.nio.charset.StandardCharsets;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Sends messages with the keys PREFIX0, PREFIX1, …: --namesrv --topic --ledger FILE --messages N [--first 0] [--rate 0]
 * [--prefix m-] [--bytes 64] [--tags T] [--sharding-keys 0]. With sharding keys message N goes to the queue of the
 * sharding key sK, where K is N modulo their number, and its own key is sK.I, where I counts from 0 within sK. Each is
 * sent until the broker has stored it, and only then written down as "sent"; a send that failed although the broker
 * stored it leaves the message there twice, with one key.
 */
public final class NumberedProducer {
    private NumberedProducer() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        Ledger ledger = new Ledger(options.text("ledger"));
        int messages = Integer.parseInt(options.text("messages"));
        int first = options.number("first", 0);
        int rate = options.number("rate", 0);
        int shardingKeys = options.number("sharding-keys", 0);
        byte[] body = "x".repeat(options.number("bytes", 64)).getBytes(StandardCharsets.US_ASCII);
        DefaultMQProducer producer = new DefaultMQProducer("numbered_producer");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(3_000);
        producer.start();
        System.out.println("started");
        long begin = System.nanoTime();
        for (int number = first; number < messages; number++) {
            if (rate > 0) {
                LockSupport.parkNanos(begin + (number - first) * 1_000_000_000L / rate - System.nanoTime());
            }
            String sharding = shardingKeys > 0 ? "s" + number % shardingKeys : "";
            String key = shardingKeys > 0 ? sharding + "." + number / shardingKeys
                : options.text("prefix", "m-") + number;
            Message message = new Message(options.text("topic"), options.text("tags", ""), key, body);
            if (!sharding.isEmpty()) {
                message.putUserProperty("__SHARDINGKEY", sharding); // a constant of MessageConst since 5.0
            }
            SendResult result = send(producer, message, sharding);
            ledger.write("sent", key, result.getMessageQueue().getBrokerName(), result.getMessageQueue().getQueueId(),
                result.getQueueOffset(), "producer", 0);
        }
        producer.shutdown();
    }

    private static SendResult send(DefaultMQProducer producer, Message message, String sharding)
            throws InterruptedException {
        while (true) {
            try {
                return sharding.isEmpty() ? producer.send(message)
                    : producer.send(message, new SelectMessageQueueByHash(), sharding);
            } catch (MQClientException | RemotingException | MQBrokerException error) {
                System.err.println("again after " + error);
                Thread.sleep(100);
            }
        }
    }
}
