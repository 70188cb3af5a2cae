import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.function.Supplier;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Writes down when it begins and finishes each message: [--handle-millis 0] [--slow-every 0 --slow-millis 0]
 * [--fail-every 0]. Each slow-every-th key, by its CRC, takes slow-millis; the first attempt of each fail-every-th fails
 * and takes the rest of the batch with it. The same as ledger_handler.py.
 */
final class LedgerHandler {
    private final Ledger ledger;
    private final String name;
    private final Supplier<String> clientId;
    private final int millis;
    private final int slowEvery;
    private final int slowMillis;
    private final int failEvery;

    LedgerHandler(Options options, Supplier<String> clientId) throws Exception {
        ledger = new Ledger(options.text("ledger"));
        name = options.text("member", "");
        this.clientId = clientId;
        millis = options.number("handle-millis", 0);
        slowEvery = options.number("slow-every", 0);
        slowMillis = options.number("slow-millis", 0);
        failEvery = options.number("fail-every", 0);
    }

    /** Whether the whole batch was handled. */
    boolean handle(List<MessageExt> batch) {
        String member = name.isEmpty() ? clientId.get() : name;
        for (MessageExt message : batch) {
            ledger.write("start", message, member);
            long crc = crc(message.getKeys());
            try {
                Thread.sleep(slowEvery > 0 && crc % slowEvery == 0 ? slowMillis : millis);
            } catch (InterruptedException error) {
                ledger.write("fail", message, member);
                throw new IllegalStateException(error); // shut down in the middle: not handled
            }
            if (failEvery > 0 && crc % failEvery == failEvery - 1 && message.getReconsumeTimes() == 0) {
                ledger.write("fail", message, member);
                return false;
            }
            ledger.write("finish", message, member);
        }
        return true;
    }

    private static long crc(String key) {
        CRC32 crc = new CRC32();
        crc.update(key.getBytes(StandardCharsets.UTF_8));
        return crc.getValue();
    }
}
