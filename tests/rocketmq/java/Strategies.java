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
