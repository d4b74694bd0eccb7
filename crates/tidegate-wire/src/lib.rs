//! The JSON on the wire, shared by the API and the client.
