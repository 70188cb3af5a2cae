package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.QueryConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * A broker in another process, with the class that the tests expect. Calls become requests if the protocol has one.
 * Other calls go to a broker that was never started, and fail.
 */
final class RemoteBroker extends BrokerController {
    static final String NAMESRV = System.getProperty("cluster.namesrv");
    static final String CLUSTER = System.getProperty("cluster.name");
    static final String NAME = System.getProperty("cluster.broker.name");
    static final String ADDRESS = System.getProperty("cluster.broker");
    private static final long TIMEOUT_MILLIS = 10000;
    private static DefaultMQAdminExt admin;

    private final TopicConfigManager topics = new Topics(this);
    private final SubscriptionGroupManager groups = new Groups(this);
    private final ConsumerOffsetManager offsets = new Offsets(this);
    private final MessageStore store;

    private RemoteBroker(BrokerConfig config, MessageStoreConfig storeConfig) throws IOException {
        super(config, new NettyServerConfig(), new NettyClientConfig(), storeConfig);
        store = new Store(storeConfig, this);
    }

    static RemoteBroker create() {
        try {
            Path directory = Files.createTempDirectory("remote-broker");
            BrokerConfig config = new Settings();
            config.setBrokerName(NAME);
            config.setBrokerClusterName(CLUSTER);
            config.setNamesrvAddr(NAMESRV);
            MessageStoreConfig storeConfig = new StoreSettings();
            storeConfig.setStorePathRootDir(directory.toString());
            storeConfig.setStorePathCommitLog(directory.resolve("commitlog").toString());
            return new RemoteBroker(config, storeConfig);
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    static NamesrvController namesrv() {
        NamesrvConfig settings = new NamesrvSettings();
        return new NamesrvController(new NamesrvConfig(), new NettyServerConfig()) {
            @Override
            public NamesrvConfig getNamesrvConfig() {
                return settings;
            }
        };
    }

    @Override
    public String getBrokerAddr() {
        return ADDRESS;
    }

    @Override
    public MessageStore getMessageStore() {
        return store;
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return topics == null ? super.getTopicConfigManager() : topics; // null: called by the super constructor
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return groups == null ? super.getSubscriptionGroupManager() : groups;
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return offsets == null ? super.getConsumerOffsetManager() : offsets;
    }

    @Override
    public synchronized void registerBrokerAll(boolean orderConfig, boolean oneway, boolean force) {
        // the real broker registers itself
    }

    @Override
    public void shutdown() {
        throw new UnsupportedOperationException("the broker is of another process");
    }

    /** A request of a getter, which has no checked exceptions. */
    interface Request<T> {
        T run(DefaultMQAdminExt admin) throws Exception;
    }

    static synchronized <T> T ask(Request<T> request) {
        try {
            if (admin == null) {
                DefaultMQAdminExt started = new DefaultMQAdminExt(TIMEOUT_MILLIS);
                started.setInstanceName("remote-broker");
                started.setNamesrvAddr(NAMESRV);
                started.start();
                admin = started;
            }
            return request.run(admin);
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static MQClientAPIImpl api(DefaultMQAdminExt admin) {
        return admin.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    private static void change(String name, Object value) {
        Properties properties = new Properties();
        properties.setProperty(name, String.valueOf(value));
        ask(admin -> {
            admin.updateBrokerConfig(ADDRESS, properties);
            return null;
        });
    }

    /** The setters that tests use. */
    private static final class Settings extends BrokerConfig {
        @Override
        public void setEnableNotifyAfterPopOrderLockRelease(boolean value) {
            change("enableNotifyAfterPopOrderLockRelease", value);
        }

        @Override
        public void setEnablePopBufferMerge(boolean value) {
            change("enablePopBufferMerge", value);
        }

        @Override
        public void setEnableSingleTopicRegister(boolean value) {
            change("enableSingleTopicRegister", value);
        }

        @Override
        public void setEnableSplitRegistration(boolean value) {
            change("enableSplitRegistration", value);
        }

        @Override
        public void setEstimateAccumulation(boolean value) {
            change("estimateAccumulation", value);
        }

        @Override
        public void setLongPollingEnable(boolean value) {
            change("longPollingEnable", value);
        }

        @Override
        public void setPopConsumerKVServiceEnable(boolean value) {
            change("popConsumerKVServiceEnable", value);
        }

        @Override
        public void setPopFromRetryProbabilityForPriority(int value) {
            change("popFromRetryProbabilityForPriority", value);
        }

        @Override
        public void setPriorityOrderAsc(boolean value) {
            change("priorityOrderAsc", value);
        }

        @Override
        public void setShortPollingTimeMills(long value) {
            change("shortPollingTimeMills", value);
        }

        @Override
        public void setTransactionCheckInterval(long value) {
            change("transactionCheckInterval", value);
        }

        @Override
        public void setUseSeparateRetryQueue(boolean value) {
            change("useSeparateRetryQueue", value);
        }

        @Override
        public void setUseServerSideResetOffset(boolean value) {
            change("useServerSideResetOffset", value);
        }
    }

    private static final class StoreSettings extends MessageStoreConfig {
        @Override
        public void setAppendTopicForTimerDeleteKey(boolean value) {
            change("appendTopicForTimerDeleteKey", value);
        }
    }

    private static final class NamesrvSettings extends NamesrvConfig {
        @Override
        public void setDeleteTopicWithBrokerRegistration(boolean value) {
            Properties properties = new Properties();
            properties.setProperty("deleteTopicWithBrokerRegistration", String.valueOf(value));
            ask(admin -> {
                admin.updateNameServerConfig(properties, null);
                return null;
            });
        }
    }

    private static final class Topics extends TopicConfigManager {
        Topics(BrokerController controller) {
            super(controller, false);
        }

        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return ask(admin -> new ConcurrentHashMap<>(
                admin.getAllTopicConfig(ADDRESS, TIMEOUT_MILLIS).getTopicConfigTable()));
        }

        @Override
        public void updateTopicConfig(TopicConfig config) {
            ask(admin -> {
                admin.createAndUpdateTopicConfig(ADDRESS, config);
                return null;
            });
        }
    }

    private static final class Groups extends SubscriptionGroupManager {
        Groups(BrokerController controller) {
            super(controller, false);
        }

        @Override
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            return ask(admin -> admin.examineSubscriptionGroupConfig(ADDRESS, group));
        }

        @Override
        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig config) {
            ask(admin -> {
                admin.createAndUpdateSubscriptionGroupConfig(ADDRESS, config);
                return null;
            });
        }
    }

    private static final class Offsets extends ConsumerOffsetManager {
        Offsets(BrokerController controller) {
            super(controller);
        }

        @Override
        public long queryOffset(String group, String topic, int queue) {
            QueryConsumerOffsetRequestHeader header = new QueryConsumerOffsetRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(queue);
            header.setSetZeroIfNotFound(false);
            return ask(admin -> {
                try {
                    return api(admin).queryConsumerOffset(ADDRESS, header, TIMEOUT_MILLIS);
                } catch (MQBrokerException error) {
                    if (error.getResponseCode() == ResponseCode.QUERY_NOT_FOUND) {
                        return -1L;
                    }
                    throw error;
                }
            });
        }
    }

    private static final class Store extends DefaultMessageStore {
        Store(MessageStoreConfig config, BrokerController controller) throws IOException {
            super(config, controller.getBrokerStatsManager(), null, controller.getBrokerConfig(),
                new ConcurrentHashMap<>());
        }

        @Override
        public long getMaxOffsetInQueue(String topic, int queue) {
            return ask(admin -> api(admin).getMaxOffset(ADDRESS, new MessageQueue(topic, NAME, queue), TIMEOUT_MILLIS));
        }

        @Override
        public long getMinOffsetInQueue(String topic, int queue) {
            return ask(admin -> api(admin).getMinOffset(ADDRESS, new MessageQueue(topic, NAME, queue), TIMEOUT_MILLIS));
        }

        @Override
        public long dispatchBehindBytes() {
            return 0; // the protocol has no request for it
        }
    }
}
