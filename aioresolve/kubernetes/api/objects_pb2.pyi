# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TypeMeta(_message.Message):
    __slots__ = ("api_version", "kind")
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    api_version: str
    kind: str
    def __init__(self, api_version: _Optional[str] = ..., kind: _Optional[str] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ("type_meta", "raw", "content_encoding")
    TYPE_META_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    type_meta: TypeMeta
    raw: bytes
    content_encoding: str
    def __init__(self, type_meta: _Optional[_Union[TypeMeta, _Mapping]] = ..., raw: _Optional[bytes] = ..., content_encoding: _Optional[str] = ...) -> None: ...

class RawExtension(_message.Message):
    __slots__ = ("raw",)
    RAW_FIELD_NUMBER: _ClassVar[int]
    raw: bytes
    def __init__(self, raw: _Optional[bytes] = ...) -> None: ...

class WatchEvent(_message.Message):
    __slots__ = ("type", "object")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    type: str
    object: RawExtension
    def __init__(self, type: _Optional[str] = ..., object: _Optional[_Union[RawExtension, _Mapping]] = ...) -> None: ...

class Time(_message.Message):
    __slots__ = ("seconds", "nanos")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    NANOS_FIELD_NUMBER: _ClassVar[int]
    seconds: int
    nanos: int
    def __init__(self, seconds: _Optional[int] = ..., nanos: _Optional[int] = ...) -> None: ...

class ListMeta(_message.Message):
    __slots__ = ("resource_version", "continue_token")
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    resource_version: str
    continue_token: str
    def __init__(self, resource_version: _Optional[str] = ..., continue_token: _Optional[str] = ...) -> None: ...

class StatusDetails(_message.Message):
    __slots__ = ("retry_after_seconds",)
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    retry_after_seconds: int
    def __init__(self, retry_after_seconds: _Optional[int] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("message", "reason", "details", "code")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    reason: str
    details: StatusDetails
    code: int
    def __init__(self, message: _Optional[bytes] = ..., reason: _Optional[str] = ..., details: _Optional[_Union[StatusDetails, _Mapping]] = ..., code: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class OwnerReference(_message.Message):
    __slots__ = ("kind", "name", "api_version", "controller")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTROLLER_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    api_version: str
    controller: bool
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., api_version: _Optional[str] = ..., controller: bool = ...) -> None: ...

class ObjectMeta(_message.Message):
    __slots__ = ("name", "namespace", "uid", "resource_version", "deletion_timestamp", "labels", "annotations", "owner_references")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    DELETION_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ANNOTATIONS_FIELD_NUMBER: _ClassVar[int]
    OWNER_REFERENCES_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    uid: str
    resource_version: str
    deletion_timestamp: bytes
    labels: _containers.RepeatedScalarFieldContainer[bytes]
    annotations: _containers.RepeatedScalarFieldContainer[bytes]
    owner_references: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., uid: _Optional[str] = ..., resource_version: _Optional[str] = ..., deletion_timestamp: _Optional[bytes] = ..., labels: _Optional[_Iterable[bytes]] = ..., annotations: _Optional[_Iterable[bytes]] = ..., owner_references: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Quantity(_message.Message):
    __slots__ = ("string",)
    STRING_FIELD_NUMBER: _ClassVar[int]
    string: str
    def __init__(self, string: _Optional[str] = ...) -> None: ...

class ResourceRequirements(_message.Message):
    __slots__ = ("limits",)
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Quantity
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Quantity, _Mapping]] = ...) -> None: ...
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    limits: _containers.MessageMap[str, Quantity]
    def __init__(self, limits: _Optional[_Mapping[str, Quantity]] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("resources", "restart_policy")
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    RESTART_POLICY_FIELD_NUMBER: _ClassVar[int]
    resources: bytes
    restart_policy: str
    def __init__(self, resources: _Optional[bytes] = ..., restart_policy: _Optional[str] = ...) -> None: ...

class PodResourceClaim(_message.Message):
    __slots__ = ("name", "resource_claim_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIM_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    resource_claim_name: str
    def __init__(self, name: _Optional[str] = ..., resource_claim_name: _Optional[str] = ...) -> None: ...

class PodResourceClaimStatus(_message.Message):
    __slots__ = ("name", "resource_claim_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIM_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    resource_claim_name: str
    def __init__(self, name: _Optional[str] = ..., resource_claim_name: _Optional[str] = ...) -> None: ...

class PodSpec(_message.Message):
    __slots__ = ("containers", "node_name", "hostname", "subdomain", "init_containers", "resource_claims")
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    SUBDOMAIN_FIELD_NUMBER: _ClassVar[int]
    INIT_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    containers: _containers.RepeatedCompositeFieldContainer[Container]
    node_name: str
    hostname: str
    subdomain: str
    init_containers: bytes
    resource_claims: bytes
    def __init__(self, containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ..., node_name: _Optional[str] = ..., hostname: _Optional[str] = ..., subdomain: _Optional[str] = ..., init_containers: _Optional[bytes] = ..., resource_claims: _Optional[bytes] = ...) -> None: ...

class PodIP(_message.Message):
    __slots__ = ("ip",)
    IP_FIELD_NUMBER: _ClassVar[int]
    ip: str
    def __init__(self, ip: _Optional[str] = ...) -> None: ...

class PodCondition(_message.Message):
    __slots__ = ("type", "status", "reason", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: str
    status: str
    reason: bytes
    message: bytes
    def __init__(self, type: _Optional[str] = ..., status: _Optional[str] = ..., reason: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ContainerStateWaiting(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: bytes
    message: bytes
    def __init__(self, reason: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ContainerStateTerminated(_message.Message):
    __slots__ = ("exit_code", "reason", "message")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    reason: bytes
    message: bytes
    def __init__(self, exit_code: _Optional[int] = ..., reason: _Optional[bytes] = ..., message: _Optional[bytes] = ...) -> None: ...

class ContainerState(_message.Message):
    __slots__ = ("waiting", "terminated")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    TERMINATED_FIELD_NUMBER: _ClassVar[int]
    waiting: ContainerStateWaiting
    terminated: ContainerStateTerminated
    def __init__(self, waiting: _Optional[_Union[ContainerStateWaiting, _Mapping]] = ..., terminated: _Optional[_Union[ContainerStateTerminated, _Mapping]] = ...) -> None: ...

class ContainerStatus(_message.Message):
    __slots__ = ("name", "state", "last_state", "restart_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LAST_STATE_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: bytes
    last_state: bytes
    restart_count: int
    def __init__(self, name: _Optional[str] = ..., state: _Optional[bytes] = ..., last_state: _Optional[bytes] = ..., restart_count: _Optional[int] = ...) -> None: ...

class PodStatus(_message.Message):
    __slots__ = ("phase", "conditions", "message", "reason", "host_ip", "pod_ip", "container_statuses", "init_container_statuses", "pod_ips", "resource_claim_statuses")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HOST_IP_FIELD_NUMBER: _ClassVar[int]
    POD_IP_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_STATUSES_FIELD_NUMBER: _ClassVar[int]
    INIT_CONTAINER_STATUSES_FIELD_NUMBER: _ClassVar[int]
    POD_IPS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIM_STATUSES_FIELD_NUMBER: _ClassVar[int]
    phase: str
    conditions: _containers.RepeatedCompositeFieldContainer[PodCondition]
    message: bytes
    reason: bytes
    host_ip: str
    pod_ip: str
    container_statuses: _containers.RepeatedCompositeFieldContainer[ContainerStatus]
    init_container_statuses: bytes
    pod_ips: bytes
    resource_claim_statuses: bytes
    def __init__(self, phase: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[PodCondition, _Mapping]]] = ..., message: _Optional[bytes] = ..., reason: _Optional[bytes] = ..., host_ip: _Optional[str] = ..., pod_ip: _Optional[str] = ..., container_statuses: _Optional[_Iterable[_Union[ContainerStatus, _Mapping]]] = ..., init_container_statuses: _Optional[bytes] = ..., pod_ips: _Optional[bytes] = ..., resource_claim_statuses: _Optional[bytes] = ...) -> None: ...

class RarePod(_message.Message):
    __slots__ = ("spec", "status")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    spec: RarePodSpec
    status: RarePodStatus
    def __init__(self, spec: _Optional[_Union[RarePodSpec, _Mapping]] = ..., status: _Optional[_Union[RarePodStatus, _Mapping]] = ...) -> None: ...

class RarePodSpec(_message.Message):
    __slots__ = ("init_containers", "resource_claims")
    INIT_CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIMS_FIELD_NUMBER: _ClassVar[int]
    init_containers: _containers.RepeatedCompositeFieldContainer[Container]
    resource_claims: _containers.RepeatedCompositeFieldContainer[PodResourceClaim]
    def __init__(self, init_containers: _Optional[_Iterable[_Union[Container, _Mapping]]] = ..., resource_claims: _Optional[_Iterable[_Union[PodResourceClaim, _Mapping]]] = ...) -> None: ...

class RarePodStatus(_message.Message):
    __slots__ = ("init_container_statuses", "pod_ips", "resource_claim_statuses")
    INIT_CONTAINER_STATUSES_FIELD_NUMBER: _ClassVar[int]
    POD_IPS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_CLAIM_STATUSES_FIELD_NUMBER: _ClassVar[int]
    init_container_statuses: _containers.RepeatedCompositeFieldContainer[ContainerStatus]
    pod_ips: _containers.RepeatedCompositeFieldContainer[PodIP]
    resource_claim_statuses: _containers.RepeatedCompositeFieldContainer[PodResourceClaimStatus]
    def __init__(self, init_container_statuses: _Optional[_Iterable[_Union[ContainerStatus, _Mapping]]] = ..., pod_ips: _Optional[_Iterable[_Union[PodIP, _Mapping]]] = ..., resource_claim_statuses: _Optional[_Iterable[_Union[PodResourceClaimStatus, _Mapping]]] = ...) -> None: ...

class Pod(_message.Message):
    __slots__ = ("metadata", "spec", "status")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus
    def __init__(self, metadata: _Optional[_Union[ObjectMeta, _Mapping]] = ..., spec: _Optional[_Union[PodSpec, _Mapping]] = ..., status: _Optional[_Union[PodStatus, _Mapping]] = ...) -> None: ...
