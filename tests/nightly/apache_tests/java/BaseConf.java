package org.apache.rocketmq.test.base;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ForkJoinPool;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.MQPullConsumer;
import org.apache.rocketmq.client.consumer.MQPushConsumer;
import org.apache.rocketmq.client.producer.MQProducer;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.test.client.rmq.RMQAsyncSendProducer;
import org.apache.rocketmq.test.client.rmq.RMQNormalConsumer;
import org.apache.rocketmq.test.client.rmq.RMQNormalProducer;
import org.apache.rocketmq.test.client.rmq.RMQTransactionalProducer;
import org.apache.rocketmq.test.clientinterface.AbstractMQConsumer;
import org.apache.rocketmq.test.clientinterface.AbstractMQProducer;
import org.apache.rocketmq.test.factory.ConsumerFactory;
import org.apache.rocketmq.test.listener.AbstractListener;
import org.apache.rocketmq.test.util.MQAdminTestUtils;
import org.apache.rocketmq.test.util.MQRandomUtils;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.MQAdminExt;

/**
 * Replaces the tests' own base class, which starts a name server and three brokers inside its JVM. System properties
 * name the cluster. Its only broker has all three names.
 */
public class BaseConf {
    public static final String NAMESRV_ADDR = RemoteBroker.NAMESRV;
    protected static final String CLUSTER_NAME = RemoteBroker.CLUSTER;
    protected static final String BROKER1_NAME = RemoteBroker.NAME;
    protected static final String BROKER2_NAME = RemoteBroker.NAME;
    protected static final String BROKER3_NAME = RemoteBroker.NAME;

    protected static final int BROKER_NUM = 1; // the compiled tests have the constant 3
    protected static final int WAIT_TIME = 5;
    protected static final int CONSUME_TIME = 2 * 60 * 1000;
    protected static final int QUEUE_NUMBERS = 8;

    protected static NamesrvController namesrvController = RemoteBroker.namesrv();
    protected static BrokerController brokerController1 = RemoteBroker.create();
    protected static BrokerController brokerController2 = brokerController1;
    protected static BrokerController brokerController3 = brokerController1;
    protected static List<BrokerController> brokerControllerList = List.of(brokerController1);
    protected static Map<String, BrokerController> brokerControllerMap = Map.of(BROKER1_NAME, brokerController1);

    protected static List<Object> mqClients = new CopyOnWriteArrayList<>();
    protected static boolean debug = false;

    static {
        IntegrationTestBase.initMQAdmin(NAMESRV_ADDR);
    }

    /** Returns at once, because the cluster is ready before the first test. */
    public static void waitBrokerRegistered(String namesrv, String cluster, int brokers) {
    }

    /** Waits half a second at most. An acknowledged message is already in its queue. */
    public boolean awaitDispatchMs(long millis) throws Exception {
        Thread.sleep(Math.min(millis, 500));
        return true;
    }

    public static String initTopic() {
        return initTopicWithName(MQRandomUtils.getRandomTopic());
    }

    public static String initTopic(TopicMessageType type) {
        return initTopicWithName(MQRandomUtils.getRandomTopic(), type);
    }

    public static String initTopicWithName(String topic) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME);
    }

    public static String initTopicWithName(String topic, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(topic, CLUSTER_NAME, type);
    }

    public static String initTopicOnSampleTopicBroker(String sample) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample);
    }

    public static String initTopicOnSampleTopicBroker(String sample, TopicMessageType type) {
        return initTopicOnSampleTopicBroker(MQRandomUtils.getRandomTopic(), sample, type);
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, CQType.SimpleCQ);
        return topic;
    }

    public static String initTopicOnSampleTopicBroker(String topic, String sample, TopicMessageType type) {
        IntegrationTestBase.initTopic(topic, NAMESRV_ADDR, sample, type);
        return topic;
    }

    public static String initConsumerGroup() {
        return initConsumerGroup(MQRandomUtils.getRandomConsumerGroup());
    }

    public static String initConsumerGroup(String group) {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        return initConsumerGroup(config);
    }

    public static String initConsumerGroup(SubscriptionGroupConfig config) {
        MQAdminTestUtils.createSub(NAMESRV_ADDR, CLUSTER_NAME, config);
        return config.getGroupName();
    }

    public static DefaultMQAdminExt getAdmin(String namesrv) {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(3000);
        admin.setNamesrvAddr(namesrv);
        admin.setPollNameServerInterval(100);
        return kept(admin);
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic) {
        return getProducer(namesrv, topic, false);
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic, boolean tls) {
        return kept(new RMQNormalProducer(namesrv, topic, tls));
    }

    public static RMQNormalProducer getProducer(String namesrv, String topic, String group, String instance) {
        return kept(new RMQNormalProducer(namesrv, topic, group, instance));
    }

    public static RMQTransactionalProducer getTransactionalProducer(
        String namesrv, String topic, TransactionListener listener) {
        return kept(new RMQTransactionalProducer(namesrv, topic, false, listener));
    }

    public static RMQAsyncSendProducer getAsyncProducer(String namesrv, String topic) {
        return kept(new RMQAsyncSendProducer(namesrv, topic));
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String topic, String expression, AbstractListener listener) {
        return getConsumer(namesrv, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String topic, String expression, AbstractListener listener, boolean tls) {
        return getConsumer(namesrv, initConsumerGroup(), topic, expression, listener, tls);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String group, String topic, String expression, AbstractListener listener) {
        return getConsumer(namesrv, group, topic, expression, listener, false);
    }

    public static RMQNormalConsumer getConsumer(
        String namesrv, String group, String topic, String expression, AbstractListener listener, boolean tls) {
        return kept(ConsumerFactory.getRMQNormalConsumer(namesrv, group, topic, expression, listener, tls));
    }

    public static Set<String> getBrokers() {
        return Set.of(RemoteBroker.NAME);
    }

    public static void shutdown() {
        List<Object> clients = new ArrayList<>(mqClients);
        mqClients.clear();
        shutdown(clients);
    }

    public static void shutdown(List<Object> clients) {
        clients.forEach(client -> ForkJoinPool.commonPool().execute(() -> end(client)));
    }

    private static void end(Object client) {
        if (client instanceof AbstractMQProducer) {
            ((AbstractMQProducer) client).shutdown();
        } else if (client instanceof AbstractMQConsumer) {
            ((AbstractMQConsumer) client).shutdown();
        } else if (client instanceof MQAdminExt) {
            ((MQAdminExt) client).shutdown();
        } else if (client instanceof MQProducer) {
            ((MQProducer) client).shutdown();
        } else if (client instanceof MQPullConsumer) {
            ((MQPullConsumer) client).shutdown();
        } else if (client instanceof MQPushConsumer) {
            ((MQPushConsumer) client).shutdown();
        }
    }

    private static <T> T kept(T client) {
        mqClients.add(client);
        return client;
    }
}
