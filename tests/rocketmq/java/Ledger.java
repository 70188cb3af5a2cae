import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Appends a line per event to a file, in one write each, so that kill -9 leaves whole lines:
 * event, key, broker, queue, offset, member, microseconds since 1970, reconsume times, separated by tabs.
 */
final class Ledger {
    private final FileOutputStream file;

    Ledger(String path) throws IOException {
        file = new FileOutputStream(path, true);
    }

    void write(String event, MessageExt message, String member) {
        write(event, message.getKeys(), message.getBrokerName(), message.getQueueId(), message.getQueueOffset(), member,
            message.getReconsumeTimes());
    }

    void write(String event, String key, String broker, int queue, long offset, String member, int times) {
        Instant now = Instant.now();
        long micros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
        String line = String.join("\t", event, key, broker, Integer.toString(queue), Long.toString(offset), member,
            Long.toString(micros), Integer.toString(times)) + "\n";
        try {
            file.write(line.getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
