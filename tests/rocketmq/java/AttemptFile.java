import java.io.FileOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** A line of JSON for each attempt, in one write; `tests/conformance/attempts.py` reads it. */
final class AttemptFile {
    private final FileOutputStream file;

    AttemptFile(String path) throws IOException {
        file = new FileOutputStream(path, true);
    }

    void write(int batch, MessageExt message) {
        StringBuilder line = new StringBuilder("{");
        number(line, "batch", batch);
        number(line, "at_millis", System.currentTimeMillis());
        text(line, "topic", message.getTopic());
        text(line, "broker_name", message.getBrokerName());
        number(line, "queue_id", message.getQueueId());
        number(line, "queue_offset", message.getQueueOffset());
        number(line, "reconsume_times", message.getReconsumeTimes());
        text(line, "keys", message.getKeys());
        text(line, "tags", message.getTags());
        text(line, "msg_id", message.getMsgId());
        text(line, "offset_msg_id",
            message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : null);
        text(line, "body", Base64.getEncoder().encodeToString(message.getBody()));
        number(line, "flag", message.getFlag());
        number(line, "sys_flag", message.getSysFlag());
        number(line, "body_crc", message.getBodyCRC());
        number(line, "store_size", message.getStoreSize());
        number(line, "commit_log_offset", message.getCommitLogOffset());
        number(line, "born_timestamp", message.getBornTimestamp());
        InetSocketAddress born = (InetSocketAddress) message.getBornHost();
        text(line, "born_host", born.getAddress().getHostAddress() + ":" + born.getPort());
        number(line, "prepared_transaction_offset", message.getPreparedTransactionOffset());
        text(line, "transaction_id", message.getTransactionId());
        line.append("\"properties\":{");
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.forEach((name, value) -> text(line, name, value));
        end(line);
        end(line);
        line.setLength(line.length() - 1);
        try {
            file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void number(StringBuilder line, String name, long value) {
        line.append(quoted(name)).append(':').append(value).append(',');
    }

    private static void text(StringBuilder line, String name, String value) {
        line.append(quoted(name)).append(':').append(value == null ? "null" : quoted(value)).append(',');
    }

    private static void end(StringBuilder line) {
        if (line.charAt(line.length() - 1) == ',') {
            line.setLength(line.length() - 1);
        }
        line.append("},");
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                quoted.append('\\').append(c);
            } else if (c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }
}
