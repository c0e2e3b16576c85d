"""kio's names for ids, as the plain types that its messages hold at run time."""

BrokerId = int
GroupId = str
ProducerId = int
TopicName = str
TransactionalId = str
