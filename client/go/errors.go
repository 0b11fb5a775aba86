package rollserve

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// Reason says why a call failed, for programs. Each reason belongs to one gRPC status. A reason that a newer server
// sends, and this client does not know, is kept as it is.
type Reason string

// Error is what every failed call returns, as part of an error that says what the caller can do:
//
//	Error
//	├── InvalidArgumentError   change the request: a field, a name or a permission is wrong
//	│   └── AccessError        get a token, or one with the scope that the message names
//	├── PreconditionError      bring the sampler into the right state, then call again
//	├── LimitError             ask for less, or have a limit raised
//	├── UnavailableError       the server is out of reach, starting or stopping: call again later
//	├── StoppedError           the call ended early
//	│   ├── CancelledError     its context was cancelled
//	│   └── DeadlineError      its deadline passed, or it made no progress for its timeout
//	└── ServerError            a fault of the server or an environment: look at the server's log
//
// errors.As finds an error, and all errors above it in the tree:
//
//	var precondition *rollserve.PreconditionError
//	if errors.As(err, &precondition) && precondition.Reason == rollserve.ReasonNoAgent { … }
//
// A CancelledError also is context.Canceled for errors.Is, and a DeadlineError is context.DeadlineExceeded.
type Error struct {
	// Message describes the error. It begins with the field, if one is at fault, and reads
	// `field: expected …, got …`.
	Message string
	// Code is the gRPC status code.
	Code codes.Code
	// Reason says exactly what happened; empty if the error is gRPC's own, such as a lost connection.
	Reason Reason
	// Field is the path of the argument, or of the field of the request, that is at fault; empty if none is.
	Field string
	// RequestID names the request in the server's log; empty if the error is gRPC's or the client's own.
	RequestID string
	// Cause is what led to this error, such as the last interruption of a call whose time is over; or nil.
	Cause error
}

// Error returns the message.
func (e *Error) Error() string { return "rollserve: " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether the error means the same as an error of package context.
func (e *Error) Is(target error) bool {
	return (target == context.Canceled && e.Code == codes.Canceled) ||
		(target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded)
}

// GRPCStatus returns the error as a gRPC status, for status.FromError and status.Code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

type details = Error

// InvalidArgumentError is the error of a request that cannot be met: a value, a name or a permission is wrong.
type InvalidArgumentError struct{ *details }

// Unwrap returns the Error.
func (e *InvalidArgumentError) Unwrap() error { return e.details }

// AccessError is the InvalidArgumentError of a client that does not prove who it is, or lacks a scope.
type AccessError struct{ *details }

// Unwrap returns the InvalidArgumentError.
func (e *AccessError) Unwrap() error { return &InvalidArgumentError{e.details} }

// PreconditionError is the error of a sampler that is not in the state that the request needs.
type PreconditionError struct{ *details }

// Unwrap returns the Error.
func (e *PreconditionError) Unwrap() error { return e.details }

// LimitError is the error of a request or a result that is larger than a limit allows.
type LimitError struct{ *details }

// Unwrap returns the Error.
func (e *LimitError) Unwrap() error { return e.details }

// UnavailableError is the error of a server that is out of reach, starting or stopping, or has lost a worker.
type UnavailableError struct{ *details }

// Unwrap returns the Error.
func (e *UnavailableError) Unwrap() error { return e.details }

// StoppedError is the error of a call that ended early, because of its caller or of a time limit.
type StoppedError struct{ *details }

// Unwrap returns the Error.
func (e *StoppedError) Unwrap() error { return e.details }

// CancelledError is the StoppedError of a call whose context was cancelled, or whose stream or sampler was closed.
type CancelledError struct{ *details }

// Unwrap returns the StoppedError.
func (e *CancelledError) Unwrap() error { return &StoppedError{e.details} }

// DeadlineError is the StoppedError of a call whose deadline passed, or that made no progress for its timeout
// (ReasonNoProgress).
type DeadlineError struct{ *details }

// Unwrap returns the StoppedError.
func (e *DeadlineError) Unwrap() error { return &StoppedError{e.details} }

// ServerError is the error of the server or of an environment. The server's log has the details.
type ServerError struct{ *details }

// Unwrap returns the Error.
func (e *ServerError) Unwrap() error { return e.details }

// classify returns the error of the tree that a status code and a reason belong to.
func classify(e *Error) error {
	switch e.Reason {
	case ReasonTokenMissing, ReasonTokenInvalid, ReasonTokenExpired, ReasonScopeMissing:
		return &AccessError{e}
	}
	switch e.Code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented:
		return &InvalidArgumentError{e}
	case codes.FailedPrecondition, codes.Aborted:
		return &PreconditionError{e}
	case codes.ResourceExhausted:
		return &LimitError{e}
	case codes.Unavailable:
		return &UnavailableError{e}
	case codes.Canceled:
		return &CancelledError{e}
	case codes.DeadlineExceeded:
		return &DeadlineError{e}
	default:
		return &ServerError{e}
	}
}

// rpcError is a status of gRPC with the call's trailing metadata.
type rpcError struct {
	error
	trailer metadata.MD
}

// withTrailer adds trailing metadata to a status; other errors, and nil, stay as they are.
func withTrailer(err error, trailer metadata.MD) error {
	if rpc, isStatus := status.FromError(err); !isStatus || rpc.Code() == codes.OK {
		return err
	}
	return rpcError{err, trailer}
}

// Unwrap returns gRPC's error.
func (e rpcError) Unwrap() error { return e.error }

// GRPCStatus returns the error as a gRPC status.
func (e rpcError) GRPCStatus() *status.Status { return status.Convert(e.error) }

func (e rpcError) trailing(key string) string {
	if values := e.trailer.Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// errorFromRPC returns the error of the tree for an error of gRPC; errors of the tree stay as they are.
func errorFromRPC(err error) error {
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	if status.Code(err) == codes.Unknown { // context's own errors, where gRPC has not made a status of them
		if converted := status.FromContextError(err); converted.Code() != codes.Unknown {
			err = converted.Err()
		}
	}
	rpc := status.Convert(err)
	e := &Error{Message: rpc.Message(), Code: rpc.Code(), Cause: err}
	if e.Message == "" {
		e.Message = rpc.Code().String()
	}
	var ended rpcError
	if errors.As(err, &ended) {
		e.Reason = Reason(ended.trailing("rollserve-reason"))
		e.RequestID = ended.trailing("rollserve-request-id")
	}
	for _, detail := range rpc.Proto().GetDetails() {
		if detail.GetTypeUrl() == "type.googleapis.com/google.rpc.BadRequest" {
			e.Field = textField([]byte(textField(detail.GetValue(), 1)), 1)
		}
	}
	return classify(e)
}

// textField returns the first value of a length-delimited field of a serialized message; empty if there is none. It
// saves the dependency on the generated google.rpc messages, which newer and older versions of gRPC have in different
// modules.
func textField(message []byte, number protowire.Number) string {
	for len(message) > 0 {
		found, kind, length := protowire.ConsumeTag(message)
		if length < 0 {
			return ""
		}
		message = message[length:]
		if found == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return string(value)
		}
		if length = protowire.ConsumeFieldValue(found, kind, message); length < 0 {
			return ""
		}
		message = message[length:]
	}
	return ""
}

// codeOf returns the status code of an error of the tree, or of gRPC.
func codeOf(err error) codes.Code {
	var known *Error
	if errors.As(err, &known) {
		return known.Code
	}
	return status.Code(err)
}

// reasonOf returns the reason of an error of the tree; empty for none.
func reasonOf(err error) Reason {
	var known *Error
	if errors.As(err, &known) {
		return known.Reason
	}
	return ""
}

// invalid returns the error for an argument that a call cannot send.
func invalid(field, expected string, got any) error {
	message := mismatch(field, expected, got).Error()
	return classify(&Error{Message: message, Code: codes.InvalidArgument, Reason: ReasonInvalidValue, Field: field})
}

// malformed returns the error for a message that violates the wire contract in the given way.
func malformed(violation error) error {
	return classify(&Error{Message: "malformed stream: " + violation.Error(), Code: codes.DataLoss})
}

// mismatch returns the text of an error about a field.
func mismatch(field, expected string, got any) error {
	return fmt.Errorf("%s: expected %s, got %v", field, expected, got)
}
