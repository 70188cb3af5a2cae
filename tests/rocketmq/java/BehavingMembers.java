import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Members of many groups in one JVM, each with a way of its own: --namesrv --members "GROUP TOPIC TAGS WAY" (a line each).
 * A way is some of these, joined by +: well, throw, sleep:MILLIS, fail:KEY (at this message alone), orderly, suspended.
 * All have one client id and two threads a group. Prints "started CLIENT_ID" once each is in its group.
 */
public final class BehavingMembers {
    private BehavingMembers() {
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("rocketmq.client.rebalance.waitInterval", "1000");
        Options options = new Options(arguments);
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        List<DefaultMQPushConsumer> suspended = new ArrayList<>();
        for (String line : options.text("members").split("\n")) {
            String[] parts = line.split(" ");
            List<String> way = List.of(parts[3].split("\\+"));
            DefaultMQPushConsumer member = new DefaultMQPushConsumer(parts[0]);
            member.setNamesrvAddr(options.text("namesrv"));
            member.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            // a consumer's first heartbeat is left out where another one of its process is under way
            member.setHeartbeatBrokerInterval(3000);
            member.setPollNameServerInterval(1000);
            // a heartbeat that is answered late costs a connection, which the broker may know for two minutes more
            member.setMqClientApiTimeout(30_000);
            member.setConsumeThreadMin(2);
            member.setConsumeThreadMax(2);
            member.subscribe(parts[1], parts[2]);
            if (way.contains("orderly")) {
                member.registerMessageListener((MessageListenerOrderly) (batch, context) -> {
                    behave(way, batch.get(0));
                    return ConsumeOrderlyStatus.SUCCESS;
                });
            } else {
                member.registerMessageListener((MessageListenerConcurrently) (batch, context) -> {
                    behave(way, batch.get(0));
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
            }
            member.start();
            members.add(member);
            if (way.contains("suspended")) {
                suspended.add(member);
            }
        }
        for (DefaultMQPushConsumer member : suspended) { // once it has queues: afterwards it takes none
            while (member.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().isEmpty()) {
                Thread.sleep(50);
            }
            member.suspend();
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> members.forEach(DefaultMQPushConsumer::shutdown)));
        System.out.println("started "
            + members.get(0).getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        Thread.currentThread().join();
    }

    private static void behave(List<String> way, MessageExt message) {
        for (String step : way) {
            String[] parts = step.split(":");
            if (parts[0].equals("throw") || parts[0].equals("fail") && parts[1].equals(message.getKeys())) {
                throw new IllegalStateException("as told");
            }
            if (parts[0].equals("sleep")) {
                try {
                    Thread.sleep(Long.parseLong(parts[1]));
                } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
    }
}
