import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A member of many groups that handles nothing: --namesrv --topic --instance NAME --groups STRATEGY=GROUP=ROOM+ROOM,...
 * [--allocate-queues BROKER:ID,...]. It has each group's queues by that group's strategy. Prints "started" once it is in
 * all of them; SIGTERM ends it with shutdown().
 */
public final class GroupsMember {
    private GroupsMember() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String group : options.text("groups").split(",")) {
            String[] parts = group.split("=", -1);
            Set<String> rooms = new HashSet<>(Arrays.asList(parts[2].split("\\+")));
            DefaultMQPushConsumer member = new DefaultMQPushConsumer(parts[1]);
            member.setNamesrvAddr(options.text("namesrv"));
            member.setInstanceName(options.text("instance"));
            // a consumer's first heartbeat is left out where another one of its process is under way
            member.setHeartbeatBrokerInterval(5_000);
            member.setConsumeThreadMin(1);
            member.setConsumeThreadMax(1);
            member.setAllocateMessageQueueStrategy(Strategies.named(parts[0], allocated(options), rooms));
            member.subscribe(options.text("topic"), "*");
            member.registerMessageListener(
                (MessageListenerConcurrently) (batch, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            member.start();
            members.add(member);
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> members.forEach(DefaultMQPushConsumer::shutdown)));
        System.out.println("started");
        Thread.currentThread().join();
    }

    private static List<MessageQueue> allocated(Options options) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String queue : options.text("allocate-queues", "").split(",")) {
            int colon = queue.lastIndexOf(':');
            if (colon > 0) {
                queues.add(new MessageQueue(options.text("topic"), queue.substring(0, colon),
                    Integer.parseInt(queue.substring(colon + 1))));
            }
        }
        return queues;
    }
}
