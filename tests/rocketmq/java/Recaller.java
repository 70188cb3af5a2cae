import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;

/**
 * Sends a message with --key, to be delivered after --delay-millis, and prints "started RECALL_HANDLE"; or, where
 * --handle is given, takes that message back, and prints "started MESSAGE_ID": --namesrv --topic. What the
 * client of 4.x does not have is called by its name.
 */
public final class Recaller {
    private Recaller() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        String topic = options.text("topic");
        DefaultMQProducer producer = new DefaultMQProducer("recalling_producer");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.start();
        String handle = options.text("handle", "");
        if (handle.isEmpty()) {
            Message message = new Message(topic, "T", options.text("key"), "waits".getBytes(StandardCharsets.UTF_8));
            MessageAccessor.putProperty(message, "TIMER_DELAY_MS", options.text("delay-millis"));
            SendResult result = producer.send(message);
            System.out.println("started " + result.getClass().getMethod("getRecallHandle").invoke(result));
        } else {
            System.out.println("started " + producer.getClass()
                .getMethod("recallMessage", String.class, String.class).invoke(producer, topic, handle));
        }
        producer.shutdown();
    }
}
