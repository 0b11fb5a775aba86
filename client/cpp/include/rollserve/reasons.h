#pragma once

/// @file
/// Why calls fail, for programs. Generated from errors.proto by `make protos`.

namespace rollserve::reason {

/// A field is malformed, out of range, or does not fit the others. `google.rpc.BadRequest` names the field.
/// Status: INVALID_ARGUMENT.
inline constexpr const char* INVALID_VALUE = "INVALID_VALUE";

/// An environment or a wrapper refused its arguments, or failed, crashed or hung when it was tried.
/// Status: INVALID_ARGUMENT.
inline constexpr const char* ENV_REFUSED = "ENV_REFUSED";

/// A Python agent refused its arguments or parameters, or failed when it was tried.
/// Status: INVALID_ARGUMENT.
inline constexpr const char* AGENT_REFUSED = "AGENT_REFUSED";

/// The environment cannot be rendered: it returns no pictures, has many agents, or its episodes are not a function of
/// their seeds.
/// Status: INVALID_ARGUMENT.
inline constexpr const char* ENV_NOT_RENDERABLE = "ENV_NOT_RENDERABLE";

/// The server has no sampler of that name.
/// Status: NOT_FOUND.
inline constexpr const char* SAMPLER_NOT_FOUND = "SAMPLER_NOT_FOUND";

/// No environment is registered under that id.
/// Status: NOT_FOUND.
inline constexpr const char* ENV_NOT_FOUND = "ENV_NOT_FOUND";

/// `gymnasium.wrappers`, or the module that the name has, has no wrapper of that name.
/// Status: NOT_FOUND.
inline constexpr const char* WRAPPER_NOT_FOUND = "WRAPPER_NOT_FOUND";

/// No Python agent is installed under that name.
/// Status: NOT_FOUND.
inline constexpr const char* AGENT_NOT_FOUND = "AGENT_NOT_FOUND";

/// A Python module cannot be imported.
/// Status: NOT_FOUND.
inline constexpr const char* MODULE_NOT_FOUND = "MODULE_NOT_FOUND";

/// An environment, a wrapper or a format of videos or datasets needs a package that is not installed on the server.
/// Status: NOT_FOUND.
inline constexpr const char* PACKAGE_NOT_FOUND = "PACKAGE_NOT_FOUND";

/// The health service does not know that service.
/// Status: NOT_FOUND.
inline constexpr const char* SERVICE_NOT_FOUND = "SERVICE_NOT_FOUND";

/// The operator has declared no environment profile of that name.
/// Status: NOT_FOUND.
inline constexpr const char* PROFILE_NOT_FOUND = "PROFILE_NOT_FOUND";

/// The operator's folder (`--data-dir`) has no dataset of that name.
/// Status: NOT_FOUND.
inline constexpr const char* DATASET_NOT_FOUND = "DATASET_NOT_FOUND";

/// The sampler was deleted because no call had named it for as long as its lease says.
/// Status: NOT_FOUND.
inline constexpr const char* LEASE_EXPIRED = "LEASE_EXPIRED";

/// The sampler was deleted by a client.
/// Status: NOT_FOUND.
inline constexpr const char* SAMPLER_DELETED = "SAMPLER_DELETED";

/// The server has no session of that token: it has ended, its lease is over, or the gateway was replaced.
/// Status: NOT_FOUND.
inline constexpr const char* SESSION_NOT_FOUND = "SESSION_NOT_FOUND";

/// The operator does not allow environments and wrappers of that module (`--allow-module`).
/// Status: PERMISSION_DENIED.
inline constexpr const char* MODULE_NOT_ALLOWED = "MODULE_NOT_ALLOWED";

/// Requests may not name that wrapper.
/// Status: PERMISSION_DENIED.
inline constexpr const char* WRAPPER_NOT_ALLOWED = "WRAPPER_NOT_ALLOWED";

/// The operator does not allow tasks to be set by that method (`--allow-method`).
/// Status: PERMISSION_DENIED.
inline constexpr const char* METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED";

/// The operator does not allow that path: in arguments (`--allow-path`), or as a dataset (`--data-dir`).
/// Status: PERMISSION_DENIED.
inline constexpr const char* PATH_NOT_ALLOWED = "PATH_NOT_ALLOWED";

/// The operator does not allow workers to dial that host of environments (`--allow-host`).
/// Status: PERMISSION_DENIED.
inline constexpr const char* HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED";

/// Environments may not be rendered to a screen.
/// Status: PERMISSION_DENIED.
inline constexpr const char* RENDER_MODE_NOT_ALLOWED = "RENDER_MODE_NOT_ALLOWED";

/// The operator does not allow pickled agents (`--allow-pickle`).
/// Status: PERMISSION_DENIED.
inline constexpr const char* PICKLE_NOT_ALLOWED = "PICKLE_NOT_ALLOWED";

/// The operator allows environments of profiles only (`--no-allow-free-env`); GetSampler has the profiles.
/// Status: PERMISSION_DENIED.
inline constexpr const char* PROFILE_REQUIRED = "PROFILE_REQUIRED";

/// The client may not do that with that sampler: its token or certificate lacks the scope that the message names.
/// Status: PERMISSION_DENIED.
inline constexpr const char* SCOPE_MISSING = "SCOPE_MISSING";

/// The sampler has no agent yet: send a whole one with UpdateAgent.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* NO_AGENT = "NO_AGENT";

/// The agent does not fit the environment, which was replaced after the agent was sent.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* AGENT_MISFIT = "AGENT_MISFIT";

/// The agent raised an error in an episode, or gave no valid action; the message says where.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* AGENT_FAILED = "AGENT_FAILED";

/// The policy version is too old, or is not kept any more.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* POLICY_VERSION = "POLICY_VERSION";

/// The environment version is not kept any more.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* ENVIRONMENT_VERSION = "ENVIRONMENT_VERSION";

/// The sampler was created again since the call that is repeated: the versions of that run are gone.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* SAMPLER_RUN = "SAMPLER_RUN";

/// The rows of a fragment call are not at the requested step, and cannot be brought there.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* ROW_STEP_COUNT = "ROW_STEP_COUNT";

/// The session goes on in another stream, which has taken it up.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* SESSION_TAKEN = "SESSION_TAKEN";

/// The number of workers is not the expected one.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* WORKER_COUNT = "WORKER_COUNT";

/// Workers have agents or environments of their own, so that their number cannot change.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* WORKERS_DIFFER = "WORKERS_DIFFER";

/// The current version of the agent or the environment is not the expected one, because another client has updated the
/// sampler.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* UNEXPECTED_VERSION = "UNEXPECTED_VERSION";

/// The saved sampler does not fit this server, whose settings give its environments other rows or other limits; or the
/// sampler has an agent that cannot be saved.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* SAVED_SAMPLER = "SAVED_SAMPLER";

/// An episode that is rendered differs from the recorded one; the message says where.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* REPLAY_DIFFERS = "REPLAY_DIFFERS";

/// The dataset was recorded with another seed, agent, environment or other options, or not by RecordDataset.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* DATASET_DIFFERS = "DATASET_DIFFERS";

/// The dataset is being recorded by another call or server.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* DATASET_IN_USE = "DATASET_IN_USE";

/// The files of a dataset are incomplete, changed or of an unknown format, do not fit the request, or change while they
/// are read.
/// Status: FAILED_PRECONDITION.
inline constexpr const char* DATASET_UNREADABLE = "DATASET_UNREADABLE";

/// A model or a pickle is larger than `--max-model-bytes`.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* MODEL_TOO_LARGE = "MODEL_TOO_LARGE";

/// A single step, or the name of a parameter, does not fit into a message of `max_message_bytes`.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* MESSAGE_TOO_SMALL = "MESSAGE_TOO_SMALL";

/// The steps of a fragment call do not fit into a worker's memory (`--worker-buffer-bytes`) and temporary files
/// (`--worker-spill-bytes`); the message says how many do, and how many workers, or bytes, the call needs.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* FRAGMENTS_TOO_LARGE = "FRAGMENTS_TOO_LARGE";

/// More workers were asked for than the operator allows (`--max-workers`).
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* TOO_MANY_WORKERS = "TOO_MANY_WORKERS";

/// Too many calls wait to be admitted already, or too many RPCs are open, in all or from one address.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* TOO_MANY_CALLS = "TOO_MANY_CALLS";

/// The requests of running evaluations take as much memory as they may.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* TOO_MANY_REQUEST_BYTES = "TOO_MANY_REQUEST_BYTES";

/// Messages of ended calls that clients have not read take as much memory as they may.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* TOO_MANY_STALLED_CALLS = "TOO_MANY_STALLED_CALLS";

/// The request has more than 4 MiB without an agent or environment, or before gRPC's compression; a text of more than
/// 1 MiB, or a name of more than 4 KiB; too many elements of a field; or more than 262,144 fields, nested ones included.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* REQUEST_TOO_LARGE = "REQUEST_TOO_LARGE";

/// The environments of all rows of all workers take more than 2 MiB as JSON; or the spaces of an environment more than
/// 1 MiB, where a bound that all elements of a Box share takes a few bytes; or the observations of a worker's rows, or
/// of the rows of all workers, would take more memory than they may (`--worker-observation-bytes`,
/// `--sampler-observation-bytes`), or an environment needs more when it is tried (`--probe-memory-bytes`), or
/// a worker that has made all of them takes more (`--worker-max-memory-bytes`); or the values that a method of all
/// environments returns take more than 2 MiB as JSON.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* ENVIRONMENTS_TOO_LARGE = "ENVIRONMENTS_TOO_LARGE";

/// Ray's object store, and the disk it spills to, have no room for results.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* OBJECT_STORE_FULL = "OBJECT_STORE_FULL";

/// The server's disk has no room for more of the dataset. What was recorded before is a whole dataset.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* DISK_FULL = "DISK_FULL";

/// No episode of a call without `max_episode_length` has ended in the last 1,000,000 steps of its rows
/// (`--max-unended-steps`), or 3 % of that for each row, 100 times the steps that it asks for, or twice the
/// environment's own limit for each row, whichever is most.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* NO_EPISODE_ENDED = "NO_EPISODE_ENDED";

/// The call asks for more steps than the operator allows (`--max-call-steps`), or has made as many for the episodes that
/// it asks for; or a batch, a shuffle buffer or an episode of a dataset takes more memory than it may.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* CALL_TOO_LARGE = "CALL_TOO_LARGE";

/// The server has as many samplers as the operator allows (`--max-samplers`).
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* TOO_MANY_SAMPLERS = "TOO_MANY_SAMPLERS";

/// The sampler's quota, or what the operator allows for any sampler, does not permit that many workers or rows, or a
/// quota or lease as large; the message says how many it permits.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* QUOTA_EXCEEDED = "QUOTA_EXCEEDED";

/// The episode has more pictures than `--max-video-frames`, or its video more bytes than `--max-video-bytes`.
/// Status: RESOURCE_EXHAUSTED.
inline constexpr const char* VIDEO_TOO_LARGE = "VIDEO_TOO_LARGE";

/// A worker's process is gone and could not be replaced in time. Calling again costs time only: lost episodes run
/// again.
/// Status: UNAVAILABLE.
inline constexpr const char* WORKER_LOST = "WORKER_LOST";

/// One worker after the other was lost with the same episode or update, so that calling again is likely to lose more.
/// Status: UNAVAILABLE.
inline constexpr const char* WORKER_LOST_AGAIN = "WORKER_LOST_AGAIN";

/// A worker was killed because a step, a reset or an action took too long.
/// Status: UNAVAILABLE.
inline constexpr const char* WORKER_HUNG = "WORKER_HUNG";

/// Fewer workers are healthy than the operator requires (`--min-healthy-workers`).
/// Status: UNAVAILABLE.
inline constexpr const char* TOO_FEW_WORKERS = "TOO_FEW_WORKERS";

/// The client did not read what was ready for it, or did not send what it began to, for too long
/// (`--client-stall-seconds`, or seconds where the call's place is needed). The rest can be asked for.
/// Status: UNAVAILABLE.
inline constexpr const char* CLIENT_STALLED = "CLIENT_STALLED";

/// The server is stopping: it starts no more calls and updates, or the grace period of running ones is over.
/// Status: UNAVAILABLE.
inline constexpr const char* SERVER_STOPPING = "SERVER_STOPPING";

/// Another server has taken the sampler over.
/// Status: UNAVAILABLE.
inline constexpr const char* SAMPLER_TAKEN = "SAMPLER_TAKEN";

/// The sampler's journal cannot be written.
/// Status: UNAVAILABLE.
inline constexpr const char* JOURNAL_LOST = "JOURNAL_LOST";

/// The call has run for as long as the operator allows (`--max-call-seconds`, or `--render-seconds` for videos), or was
/// paused when its place was needed by a client with fewer calls. The rest can be asked for, in a call that queues again.
/// Status: UNAVAILABLE.
inline constexpr const char* CALL_TOO_LONG = "CALL_TOO_LONG";

/// A worker was killed because its process took too much memory (`--worker-max-memory-bytes`), and so were the workers
/// before it, with the same episode or update.
/// Status: UNAVAILABLE.
inline constexpr const char* WORKER_OUT_OF_MEMORY = "WORKER_OUT_OF_MEMORY";

/// The server asks who the client is, and the request has no token in its metadata (`authorization: Bearer …`), or the
/// connection no certificate that the server knows.
/// Status: UNAUTHENTICATED.
inline constexpr const char* TOKEN_MISSING = "TOKEN_MISSING";

/// The server does not accept the token in the request's metadata, or the metadata has another scheme than `Bearer`.
/// Status: UNAUTHENTICATED.
inline constexpr const char* TOKEN_INVALID = "TOKEN_INVALID";

/// The token was valid once, and has expired: get another one.
/// Status: UNAUTHENTICATED.
inline constexpr const char* TOKEN_EXPIRED = "TOKEN_EXPIRED";

/// There is a sampler of that name, which another principal or a different request has created.
/// Status: ALREADY_EXISTS.
inline constexpr const char* SAMPLER_EXISTS = "SAMPLER_EXISTS";

/// An environment raised an error in every attempt at an episode (`--env-retries`); the message quotes it.
/// Status: INTERNAL.
inline constexpr const char* ENV_FAILED = "ENV_FAILED";

/// A fault of the server; its log has the details.
/// Status: INTERNAL.
inline constexpr const char* INTERNAL = "INTERNAL";

/// The call made no progress for the client's timeout. Client libraries raise it, and servers that are at work.
/// Status: DEADLINE_EXCEEDED.
inline constexpr const char* NO_PROGRESS = "NO_PROGRESS";

/// The connection cannot be encrypted as the client asks: the server's certificate is not signed by an authority that
/// the client trusts, is for another name, or is not valid now; or the server does not use TLS. Raised by client
/// libraries, never sent.
/// Status: UNAUTHENTICATED.
inline constexpr const char* TLS_FAILED = "TLS_FAILED";

}  // namespace rollserve::reason
