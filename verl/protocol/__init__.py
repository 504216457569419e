"""What travels between the driver and the workers, and the one list of the columns in it."""

from verl.protocol.data_proto import DataProto, DataProtoItem
from verl.protocol.future import DataProtoFuture
from verl.protocol.padding import align, pad_dataproto_to_divisor, unpad_dataproto

__all__ = ["DataProto", "DataProtoFuture", "DataProtoItem", "align", "pad_dataproto_to_divisor", "unpad_dataproto"]
