package rollserve

import (
	"context"
	"errors"
	"math/rand"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	firstPause = 100 * time.Millisecond
	maxPause   = time.Second
)

// contact says whether the server has ever answered, which decides what calls do while it is away: without an answer
// ever, the address may be wrong, so calls fail at once.
type contact struct {
	made   int32
	closed int32 // whether the caller has closed the sampler
	seen   *handshakes
	proxy  string // the environment variable with the proxy on the way; empty for none
}

func (c *contact) record() { atomic.StoreInt32(&c.made, 1) }

func (c *contact) wasMade() bool { return atomic.LoadInt32(&c.made) == 1 }

// interruptions are those of one call, over all attempts at it. Only data that was not received before counts as
// progress: attempts end when the call's timeout has passed since the first interruption without new data since.
type interruptions struct {
	contact    *contact
	timeout    time.Duration
	last       error // how the last attempt ended, if it was interrupted
	waitingFor string
	since      time.Time
	next       time.Duration
}

func newInterruptions(contact *contact, timeout time.Duration) *interruptions {
	return &interruptions{contact: contact, timeout: timeout, next: firstPause}
}

// advance records that new data has arrived.
func (i *interruptions) advance() { i.since, i.next = time.Time{}, firstPause }

// pause waits before the next attempt, or returns the client's error if there is none.
//
// hasBegun says whether the beginning of the call's stream has arrived, and canRepeat whether a call that has begun can
// be made again.
func (i *interruptions) pause(ctx context.Context, err error, hasBegun, canRepeat bool) error {
	err = i.errorOf(ctx, err)
	if !i.goesOn(err, hasBegun, canRepeat) {
		return i.final(err)
	}
	now := time.Now()
	if i.since.IsZero() {
		i.since = now
	}
	left := i.timeout - now.Sub(i.since)
	if left <= 0 {
		return i.final(err)
	}
	pause := time.Duration(float64(i.next) * (0.5 + rand.Float64()/2))
	if pause > left {
		pause = left
	}
	if i.next *= 2; i.next > maxPause {
		i.next = maxPause
	}
	i.last = err
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return i.final(errorFromRPC(ctx.Err()))
	}
}

// errorOf returns the client's error for an error of gRPC.
//
// A call that ends with Canceled, although its caller has not cancelled it, was reset: gRPC does so with calls that a
// server has received and not begun when it stops.
func (i *interruptions) errorOf(ctx context.Context, err error) error {
	err = errorFromRPC(err)
	isAsked := ctx.Err() != nil || atomic.LoadInt32(&i.contact.closed) == 1
	if codeOf(err) == codes.Canceled && ReasonOf(err) == "" && !isAsked {
		return &Error{Message: "the server reset the call", Code: codes.Unavailable, Cause: err}
	}
	if codeOf(err) == codes.Unavailable && ReasonOf(err) == "" {
		if failure := i.contact.seen.failure(); failure != nil {
			return failure
		}
		return i.contact.withHint(err)
	}
	return err
}

// withHint returns the error of a connection that could not be made with the proxy on its way, and of one that the
// server has closed with what may be missing; TLS that the client leaves out cannot be told from other reasons.
func (c *contact) withHint(err error) error {
	var known *Error
	if !errors.As(err, &known) || !errors.Is(known, ErrUnavailable) {
		return err
	}
	isDialing, hinted := strings.Contains(known.Message, "dial"), *known
	switch {
	case isDialing && c.proxy != "":
		hinted.Message += " (through the proxy of " + c.proxy + ")"
		return &hinted
	case isDialing || c.wasMade():
		return err
	}
	hinted.Message += " (if the server encrypts connections, give CA; if it asks for certificates, give Cert and Key, " +
		"signed by an authority that it trusts and not expired)"
	return &hinted
}

func (i *interruptions) goesOn(err error, hasBegun, canRepeat bool) bool {
	if codeOf(err) != codes.Unavailable {
		return false
	}
	if hasBegun {
		switch ReasonOf(err) {
		case ReasonWorkerLostAgain, ReasonWorkerHung, ReasonWorkerOutOfMemory:
			return false // the server itself has tried again, and has lost a worker each time
		}
		return canRepeat
	}
	switch ReasonOf(err) {
	case "", ReasonServerStopping, ReasonSamplerTaken, ReasonJournalLost:
		return i.contact.wasMade() // the next server at the address need not have these reasons
	}
	return false
}

// final returns the error for a call after whose last attempt there is none.
func (i *interruptions) final(err error) error {
	if codeOf(err) != codes.DeadlineExceeded || ReasonOf(err) != "" {
		return err
	}
	message := "deadline: the call was not over when its context's deadline passed" + i.after()
	return &Error{Message: message, Code: codes.DeadlineExceeded, Field: "deadline", Cause: i.last}
}

// silence returns the error for an attempt that made no progress for the call's timeout.
func (i *interruptions) silence() error {
	message := "timeout: no progress for " + i.timeout.String() + i.after()
	return &Error{
		Message: message, Code: codes.DeadlineExceeded, Reason: ReasonNoProgress, Field: "timeout", Cause: i.last,
	}
}

func (i *interruptions) after() string {
	if i.waitingFor != "" {
		return "; the server waits for " + i.waitingFor
	}
	if i.last != nil {
		return "; an earlier attempt ended with: " + i.last.Error()
	}
	return ""
}
