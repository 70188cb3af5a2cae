import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.PopStatus;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.lite.LiteSubscriptionAction;
import org.apache.rocketmq.common.lite.LiteSubscriptionDTO;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.body.LiteSubscriptionCtlRequestBody;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopLiteMessageRequestHeader;

/**
 * Pops lite topics by the requests that the official proxy sends, and acknowledges each message: --namesrv --broker
 * ADDRESS --broker-name --topic PARENT --group --lite-topics (separated by commas) --messages N --attempts FILE. Prints
 * "started", and ends after N messages. It is compiled against RocketMQ 5.5 alone.
 */
public final class LitePopper {
    private static final long TIMEOUT_MILLIS = 10_000;

    private LitePopper() {
    }

    public static void main(String[] arguments) throws Exception {
        Options options = new Options(arguments);
        AttemptFile attempts = new AttemptFile(options.text("attempts"));
        String broker = options.text("broker");
        DefaultMQProducer producer = new DefaultMQProducer("lite_popper");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.start();
        MQClientAPIImpl api = producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
        String clientId = producer.getDefaultMQProducerImpl().getmQClientFactory().getClientId();
        subscribe(api, broker, clientId, options);
        System.out.println("started");
        for (int seen = 0; seen < options.number("messages", 0);) {
            PopResult popped = pop(api, broker, clientId, options);
            if (popped.getPopStatus() != PopStatus.FOUND) {
                continue;
            }
            for (MessageExt message : popped.getMsgFoundList()) {
                attempts.write(seen++, message);
                acknowledge(api, broker, message, options);
            }
        }
        producer.shutdown();
    }

    private static void subscribe(MQClientAPIImpl api, String broker, String clientId, Options options)
            throws Exception {
        LiteSubscriptionDTO wanted = new LiteSubscriptionDTO().setAction(LiteSubscriptionAction.COMPLETE_ADD)
            .setClientId(clientId).setGroup(options.text("group")).setTopic(options.text("topic"))
            .setLiteTopicSet(new LinkedHashSet<>(Arrays.asList(options.text("lite-topics").split(","))));
        LiteSubscriptionCtlRequestBody body = new LiteSubscriptionCtlRequestBody();
        body.setSubscriptionSet(new LinkedHashSet<>(Arrays.asList(wanted)));
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.LITE_SUBSCRIPTION_CTL, null);
        request.setBody(body.encode());
        RemotingCommand answer = api.getRemotingClient().invokeSync(broker, request, TIMEOUT_MILLIS);
        if (answer.getCode() != 0) {
            throw new IllegalStateException(answer.toString());
        }
    }

    private static PopResult pop(MQClientAPIImpl api, String broker, String clientId, Options options)
            throws Exception {
        PopLiteMessageRequestHeader header = new PopLiteMessageRequestHeader();
        header.setClientId(clientId);
        header.setConsumerGroup(options.text("group"));
        header.setTopic(options.text("topic"));
        header.setMaxMsgNum(32);
        header.setInvisibleTime(60_000L);
        header.setPollTime(2_000L);
        header.setBornTime(System.currentTimeMillis());
        CompletableFuture<PopResult> result = new CompletableFuture<>();
        api.popLiteMessageAsync(options.text("broker-name"), broker, header, TIMEOUT_MILLIS, new PopCallback() {
            @Override
            public void onSuccess(PopResult popped) {
                result.complete(popped);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        });
        return result.get(TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
    }

    private static void acknowledge(MQClientAPIImpl api, String broker, MessageExt message, Options options)
            throws Exception {
        String handle = message.getProperty("POP_CK");
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(options.text("group"));
        header.setTopic(options.text("topic"));
        header.setLiteTopic(message.getProperty("__LITE_TOPIC"));
        header.setQueueId(ExtraInfoUtil.getQueueId(ExtraInfoUtil.split(handle)));
        header.setOffset(message.getQueueOffset());
        header.setExtraInfo(handle);
        CompletableFuture<AckResult> result = new CompletableFuture<>();
        api.ackLiteMessageAsync(broker, TIMEOUT_MILLIS, new AckCallback() {
            @Override
            public void onSuccess(AckResult acknowledged) {
                result.complete(acknowledged);
            }

            @Override
            public void onException(Throwable error) {
                result.completeExceptionally(error);
            }
        }, header);
        result.get(TIMEOUT_MILLIS, TimeUnit.MILLISECONDS);
    }
}
