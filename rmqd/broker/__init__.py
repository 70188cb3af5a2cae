"""A name server and a broker inside a Python process, for trying rmqd and for testing handlers without a JVM.

`embedded.embedded_rocketmq` starts both. They speak the remoting protocol, on the codec of `wire` and on nothing of
`client`: a broker that shared the client's code would agree with its mistakes.
"""
