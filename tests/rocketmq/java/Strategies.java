import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Java's allocate strategies by the names that rmqd has for them. */
final class Strategies {
    private Strategies() {
    }

    /** The named one, with --allocate-queues BROKER:ID,... of --topic, and --machine-rooms A,B. */
    static AllocateMessageQueueStrategy named(String name, Options options) {
        List<MessageQueue> allocated = new ArrayList<>();
        for (String queue : listed(options.text("allocate-queues", ""))) {
            int colon = queue.lastIndexOf(':');
            allocated.add(new MessageQueue(options.text("topic"), queue.substring(0, colon),
                Integer.parseInt(queue.substring(colon + 1))));
        }
        Set<String> rooms = new HashSet<>(listed(options.text("machine-rooms", "")));
        return named(name, allocated, rooms);
    }

    private static List<String> listed(String text) {
        return text.isEmpty() ? Collections.emptyList() : Arrays.asList(text.split(","));
    }

    static AllocateMessageQueueStrategy named(String name, List<MessageQueue> allocated, Set<String> rooms) {
        switch (name) {
            case "averagely":
                return new AllocateMessageQueueAveragely();
            case "averagely_by_circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            case "by_config":
                AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
                byConfig.setMessageQueueList(allocated);
                return byConfig;
            case "by_machine_room":
                AllocateMessageQueueByMachineRoom byRoom = new AllocateMessageQueueByMachineRoom();
                byRoom.setConsumeridcs(rooms);
                return byRoom;
            case "machine_room_nearby":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new RoomsByName());
            default:
                throw new IllegalArgumentException("no strategy " + name);
        }
    }

    /** The rule that docs/migrating.md gives to Java members: brokers are room@name, client ids ip@room@name. */
    private static final class RoomsByName implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            int at = queue.getBrokerName().indexOf('@');
            return at < 0 ? null : queue.getBrokerName().substring(0, at);
        }

        @Override
        public String consumerDeployIn(String clientId) {
            String[] parts = clientId.split("@", -1);
            return parts.length < 3 ? null : parts[1];
        }
    }
}
