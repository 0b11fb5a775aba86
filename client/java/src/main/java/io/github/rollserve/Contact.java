package io.github.rollserve;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.net.Proxy;
import java.net.ProxySelector;

/**
 * Whether the server has ever answered, which decides what calls do while it is away: without an answer ever, the
 * address may be wrong, so calls fail at once.
 */
final class Contact {
    private final String target;
    private volatile boolean made;

    /** Starts without an answer of the server at a target. */
    Contact(String target) {
        this.target = target;
    }

    void record() {
        made = true;
    }

    boolean wasMade() {
        return made;
    }

    /** Returns the exception for an error of gRPC, with a hint if a server closes each new connection. */
    RollserveException exception(StatusRuntimeException error) {
        if (error.getStatus().getCode() == Status.Code.UNAVAILABLE) {
            RollserveException failure = TlsFailures.exception(error);
            if (failure != null) {
                return failure;
            }
        }
        RollserveException known = Errors.from(error);
        if (TlsFailures.isUnreachable(error) && !proxy().isEmpty()) {
            return Errors.classify(
                known.details().withMessage(known.getMessage() + " (through the proxy of " + proxy() + ")"));
        }
        boolean isClosed = known instanceof UnavailableException && known.reason() == Reason.NONE && !made;
        if (!isClosed || TlsFailures.isUnreachable(error)) {
            return known;
        }
        String hint = ": the connection was closed. If the server encrypts connections, give ca; if it asks for "
            + "certificates, give cert and key, signed by an authority that it trusts and not expired";
        return Errors.classify(known.details().withMessage(known.getMessage() + hint));
    }

    /** Returns the setting with the proxy that gRPC takes on the way to the server; empty without one. */
    private String proxy() {
        if (Token.isLocal(target) || Token.address(target).getHost() == null) {
            return "";
        }
        if (System.getenv("GRPC_PROXY_EXP") != null) {
            return "GRPC_PROXY_EXP";
        }
        boolean isDirect = ProxySelector.getDefault() == null
            || ProxySelector.getDefault().select(Token.address(target)).get(0).type() == Proxy.Type.DIRECT;
        return isDirect ? "" : "Java's settings, such as https.proxyHost";
    }
}
