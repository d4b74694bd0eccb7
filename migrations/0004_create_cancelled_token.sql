-- Cancellation tokens that were cancelled: what arrives with one within a day is refused.
CREATE TABLE tidegate.cancelled_token (
    tenant text NOT NULL,
    token text NOT NULL,
    cancelled_ms bigint NOT NULL,
    expires_ms bigint NOT NULL,
    PRIMARY KEY (tenant, token)
);
CREATE INDEX cancelled_token_expires ON tidegate.cancelled_token (expires_ms);
