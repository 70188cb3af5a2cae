import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;

/**
 * A member of many groups that handles nothing: --namesrv --topic --instance NAME --groups STRATEGY=GROUP,...
 * [--allocate-queues BROKER:ID,...] [--machine-rooms A,B]. It has each group's queues by that group's strategy. Prints
 * "started" once it is in all of them; SIGTERM ends it with shutdown().
 */
public final class GroupsMember {
    private GroupsMember() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        for (String pair : options.text("groups").split(",")) {
            int equals = pair.indexOf('=');
            DefaultMQPushConsumer member = new DefaultMQPushConsumer(pair.substring(equals + 1));
            member.setNamesrvAddr(options.text("namesrv"));
            member.setInstanceName(options.text("instance"));
            member.setConsumeThreadMin(1);
            member.setConsumeThreadMax(1);
            member.setAllocateMessageQueueStrategy(Strategies.named(pair.substring(0, equals), options));
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
}
