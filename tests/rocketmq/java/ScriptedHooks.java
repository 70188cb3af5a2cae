import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.hook.ConsumeMessageContext;
import org.apache.rocketmq.client.hook.ConsumeMessageHook;
import org.apache.rocketmq.client.hook.FilterMessageContext;
import org.apache.rocketmq.client.hook.FilterMessageHook;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Hooks of a ScriptedConsumer: one leaves out the messages that have a property `unwanted`, the other writes a line
 * before and after each batch: "before KEYS" and "after KEYS success" (or "failed"), of each message.
 */
final class ScriptedHooks implements ConsumeMessageHook, FilterMessageHook {
    private final FileOutputStream file;

    private ScriptedHooks(String path) throws IOException {
        file = new FileOutputStream(path, true);
    }

    static void install(DefaultMQPushConsumer consumer, String path) throws IOException {
        ScriptedHooks hooks = new ScriptedHooks(path);
        consumer.getDefaultMQPushConsumerImpl().registerConsumeMessageHook(hooks);
        consumer.getDefaultMQPushConsumerImpl().registerFilterMessageHook(hooks);
    }

    @Override
    public String hookName() {
        return "scripted";
    }

    @Override
    public void consumeMessageBefore(ConsumeMessageContext context) {
        for (MessageExt message : context.getMsgList()) {
            write("before " + message.getKeys());
        }
    }

    @Override
    public void consumeMessageAfter(ConsumeMessageContext context) {
        for (MessageExt message : context.getMsgList()) {
            write("after " + message.getKeys() + (context.isSuccess() ? " success" : " failed"));
        }
    }

    @Override
    public void filterMessage(FilterMessageContext context) {
        context.getMsgList().removeIf(message -> message.getUserProperty("unwanted") != null);
    }

    private void write(String line) {
        try {
            file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
