"""A name server and a broker in a Python process, for trying rmqd and testing handlers without a JVM.

`embedded_rocketmq` starts both servers. They use the remoting codec of `wire`, and import nothing from `client`: a
broker that shared the client's code would also share its mistakes. Modules behave like RocketMQ's classes, including
their bugs. The docstring of a module names its Java classes.
"""
