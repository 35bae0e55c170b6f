# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CoreOnChip(_message.Message):
    __slots__ = ("type",)
    TYPE_FIELD_NUMBER: _ClassVar[int]
    type: int
    def __init__(self, type: _Optional[int] = ...) -> None: ...

class CoreIdentifier(_message.Message):
    __slots__ = ("chip_id", "core_on_chip")
    CHIP_ID_FIELD_NUMBER: _ClassVar[int]
    CORE_ON_CHIP_FIELD_NUMBER: _ClassVar[int]
    chip_id: int
    core_on_chip: CoreOnChip
    def __init__(self, chip_id: _Optional[int] = ..., core_on_chip: _Optional[_Union[CoreOnChip, _Mapping]] = ...) -> None: ...

class CoreState(_message.Message):
    __slots__ = ("core_id",)
    CORE_ID_FIELD_NUMBER: _ClassVar[int]
    core_id: CoreIdentifier
    def __init__(self, core_id: _Optional[_Union[CoreIdentifier, _Mapping]] = ...) -> None: ...

class RuntimeStatus(_message.Message):
    __slots__ = ("core_states",)
    class CoreStatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: CoreState
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[CoreState, _Mapping]] = ...) -> None: ...
    CORE_STATES_FIELD_NUMBER: _ClassVar[int]
    core_states: _containers.MessageMap[int, CoreState]
    def __init__(self, core_states: _Optional[_Mapping[int, CoreState]] = ...) -> None: ...

class MetricRequest(_message.Message):
    __slots__ = ("metric_name", "skip_node_aggregation")
    METRIC_NAME_FIELD_NUMBER: _ClassVar[int]
    SKIP_NODE_AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    metric_name: str
    skip_node_aggregation: bool
    def __init__(self, metric_name: _Optional[str] = ..., skip_node_aggregation: bool = ...) -> None: ...

class AttributeValue(_message.Message):
    __slots__ = ("int_attr",)
    INT_ATTR_FIELD_NUMBER: _ClassVar[int]
    int_attr: int
    def __init__(self, int_attr: _Optional[int] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: AttributeValue
    def __init__(self, value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...

class Gauge(_message.Message):
    __slots__ = ("as_int",)
    AS_INT_FIELD_NUMBER: _ClassVar[int]
    as_int: int
    def __init__(self, as_int: _Optional[int] = ...) -> None: ...

class Metric(_message.Message):
    __slots__ = ("attribute", "gauge")
    ATTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    GAUGE_FIELD_NUMBER: _ClassVar[int]
    attribute: Attribute
    gauge: Gauge
    def __init__(self, attribute: _Optional[_Union[Attribute, _Mapping]] = ..., gauge: _Optional[_Union[Gauge, _Mapping]] = ...) -> None: ...

class DeviceMetrics(_message.Message):
    __slots__ = ("metrics",)
    METRICS_FIELD_NUMBER: _ClassVar[int]
    metrics: _containers.RepeatedCompositeFieldContainer[Metric]
    def __init__(self, metrics: _Optional[_Iterable[_Union[Metric, _Mapping]]] = ...) -> None: ...

class MetricResponse(_message.Message):
    __slots__ = ("metric",)
    METRIC_FIELD_NUMBER: _ClassVar[int]
    metric: DeviceMetrics
    def __init__(self, metric: _Optional[_Union[DeviceMetrics, _Mapping]] = ...) -> None: ...
