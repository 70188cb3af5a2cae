import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Loads most of what the other programs load, for the class data archive that is written when it ends: a consumer, a
 * producer and mqadmin start, and find that no name server answers. The arguments name the programs' classes.
 */
public final class Loaded {
    private static final String NAME_SERVER = "127.0.0.1:1";

    private Loaded() {
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("loaded");
        consumer.setNamesrvAddr(NAME_SERVER);
        consumer.subscribe("loaded", "*");
        consumer.registerMessageListener(
            (MessageListenerConcurrently) (batch, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            consumer.start();
        } catch (IllegalStateException expected) {
            // it asks for its topic's route last
        }
        DefaultMQProducer producer = new DefaultMQProducer("loaded_too");
        producer.setNamesrvAddr(NAME_SERVER);
        producer.start();
        MQAdminStartup.main0(new String[] {"topicList", "-n", NAME_SERVER}, null);
        for (String name : arguments) {
            Class.forName(name);
        }
        System.exit(0);
    }
}
