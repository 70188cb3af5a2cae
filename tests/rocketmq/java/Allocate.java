import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What Java's allocate strategies return. Each line of input is a case {"strategy", "client", "queues": [[topic, broker,
 * id]...], "clients": [...], "allocated": like queues, "rooms": [...]}; its answer is a line with the queues in the
 * strategy's order, or with {"error": the exception's class}.
 */
public final class Allocate {
    private Allocate() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, false, "UTF-8");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            output.println(JSON.toJSONString(answer(JSON.parseObject(line))));
        }
        output.flush();
    }

    private static Object answer(JSONObject wanted) {
        AllocateMessageQueueStrategy strategy = Strategies.named(wanted.getString("strategy"),
            queues(wanted.getJSONArray("allocated")), new HashSet<>(wanted.getJSONArray("rooms").toJavaList(String.class)));
        JSONArray answer = new JSONArray();
        try {
            for (MessageQueue queue : strategy.allocate("group", wanted.getString("client"),
                queues(wanted.getJSONArray("queues")), wanted.getJSONArray("clients").toJavaList(String.class))) {
                answer.add(new Object[] {queue.getTopic(), queue.getBrokerName(), queue.getQueueId()});
            }
        } catch (IllegalArgumentException error) {
            JSONObject failure = new JSONObject();
            failure.put("error", error.getClass().getSimpleName());
            return failure;
        }
        return answer;
    }

    private static List<MessageQueue> queues(JSONArray array) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            JSONArray queue = array.getJSONArray(i);
            queues.add(new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)));
        }
        return queues;
    }
}
