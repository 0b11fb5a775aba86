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

// Error is the error of every call that fails. Its kind says what the caller can do, and errors.Is tells kinds apart:
//
//	ErrInvalidArgument   change the request: a field, a name or a permission is wrong
//	└── ErrAccess        get a token, or one with the scope that the message names
//	ErrPrecondition      bring the sampler into the right state, then call again
//	ErrLimit             ask for less, or have a limit raised
//	ErrUnavailable       the server is out of reach, starting or stopping: call again later
//	ErrStopped           the call ended early
//	├── ErrCancelled     its context was cancelled, or its stream or sampler was closed
//	└── ErrDeadline      its deadline passed, or it made no progress for its timeout
//	ErrServer            a fault of the server or an environment: look at the server's log
//
// An error is its kind and the kind above it. ErrCancelled also is context.Canceled, and ErrDeadline is
// context.DeadlineExceeded. errors.As finds the Error itself, and ReasonOf its reason:
//
//	if rollserve.ReasonOf(err) == rollserve.ReasonNoAgent { … }
//
// The kind follows from Code and Reason, so tests can make errors of any kind. The zero value is an ErrServer.
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

	kind error // instead of the one of Code and Reason; usually nil
}

// The kinds of errors, for errors.Is; see Error.
var (
	// ErrInvalidArgument is the kind of requests that cannot be met: a value, a name or a permission is wrong.
	ErrInvalidArgument = kind("the request is invalid", nil)
	// ErrAccess is the ErrInvalidArgument of a client that does not prove who it is, or lacks a scope.
	ErrAccess = kind("access is denied", ErrInvalidArgument)
	// ErrPrecondition is the kind of requests that the sampler is not in the state for.
	ErrPrecondition = kind("the sampler is not in the state that the request needs", nil)
	// ErrLimit is the kind of requests and results that are larger than a limit allows.
	ErrLimit = kind("the request or its result is too large", nil)
	// ErrUnavailable is the kind of a server that is out of reach, starting or stopping, or has lost a worker.
	ErrUnavailable = kind("the server is unavailable", nil)
	// ErrStopped is the kind of calls that ended early, because of their caller or of a time limit.
	ErrStopped = kind("the call ended early", nil)
	// ErrCancelled is the ErrStopped of a call whose context was cancelled, or whose stream or sampler was closed.
	ErrCancelled = kind("the call was cancelled", ErrStopped)
	// ErrDeadline is the ErrStopped of a call whose deadline passed, or that made no progress for its timeout
	// (ReasonNoProgress).
	ErrDeadline = kind("the time of the call is over", ErrStopped)
	// ErrServer is the kind of faults of the server or of an environment. The server's log has the details.
	ErrServer = kind("the server or an environment failed", nil)
)

// errorKind is a kind of errors, and the kind above it.
type errorKind struct {
	text  string
	above error
}

func kind(text string, above error) error { return &errorKind{text, above} }

func (k *errorKind) Error() string { return "rollserve: " + k.text }

func (k *errorKind) Unwrap() error { return k.above }

// ReasonOf returns the reason of an Error, or of one that err wraps; empty if there is none.
func ReasonOf(err error) Reason {
	var known *Error
	if errors.As(err, &known) {
		return known.Reason
	}
	return ""
}

// Error returns the message.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.kindOf().Error()
	}
	return "rollserve: " + e.Message
}

// Unwrap returns the cause; nil if that is another Error, whose kind is not the kind of this one.
func (e *Error) Unwrap() error {
	if _, isOther := e.Cause.(*Error); isOther {
		return nil
	}
	return e.Cause
}

// Is reports whether the error is of a kind, or means the same as an error of package context.
func (e *Error) Is(target error) bool {
	return errors.Is(e.kindOf(), target) ||
		(target == context.Canceled && e.Code == codes.Canceled) ||
		(target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded)
}

// GRPCStatus returns the error as a gRPC status, for status.FromError and status.Code.
func (e *Error) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

func (e *Error) kindOf() error {
	if e.kind != nil {
		return e.kind
	}
	switch e.Reason {
	case ReasonTokenMissing, ReasonTokenInvalid, ReasonTokenExpired, ReasonScopeMissing:
		return ErrAccess
	}
	switch e.Code {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.PermissionDenied,
		codes.Unauthenticated, codes.Unimplemented:
		return ErrInvalidArgument
	case codes.FailedPrecondition, codes.Aborted:
		return ErrPrecondition
	case codes.ResourceExhausted:
		return ErrLimit
	case codes.Unavailable:
		return ErrUnavailable
	case codes.Canceled:
		return ErrCancelled
	case codes.DeadlineExceeded:
		return ErrDeadline
	default:
		return ErrServer
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

// errorFromRPC returns the Error for an error of gRPC; an Error stays as it is.
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
	return e
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

// codeOf returns the status code of an Error, or of an error of gRPC.
func codeOf(err error) codes.Code {
	var known *Error
	if errors.As(err, &known) {
		return known.Code
	}
	return status.Code(err)
}

// invalid returns the error for an argument that a call cannot send.
func invalid(field, expected string, got any) error {
	message := mismatch(field, expected, got).Error()
	return &Error{Message: message, Code: codes.InvalidArgument, Reason: ReasonInvalidValue, Field: field}
}

// malformed returns the error for a message that violates the wire contract in the given way.
func malformed(violation error) error {
	return &Error{Message: "malformed stream: " + violation.Error(), Code: codes.DataLoss}
}

// mismatch returns the text of an error about a field.
func mismatch(field, expected string, got any) error {
	return fmt.Errorf("%s: expected %s, got %v", field, expected, got)
}
