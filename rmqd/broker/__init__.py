"""A name server and a broker in a Python process, for trying rmqd and testing handlers without a JVM.

`embedded_rocketmq` starts both servers. They use the remoting codec of `rmqd.wire`, but import nothing from
`rmqd.client`: a broker that shared the client's code would also share its bugs. Each module behaves like the RocketMQ
classes that its docstring names, including their bugs.
"""
