"""A name server and a broker in a Python process, for trying rmqd and testing handlers without a JVM.

`embedded_rocketmq` starts both. They speak the remoting protocol with the codec of `wire`, and import nothing from
`client`: a broker that shared the client's code would also share its mistakes. Modules have the names of RocketMQ's
classes and behave like them, including their bugs. The docstring of a module names its Java class.
"""
