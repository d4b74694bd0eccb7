//! Names to addresses, of which only those that may be connected to come back.

use std::net::SocketAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::address::AddressPolicy;
use crate::target::Refused;

/// Resolves by the system's resolver and drops what the policy does not allow. The connection is made to what this
/// returns and to nothing else, so a name that changes its address after the check gains nothing.
#[derive(Debug, Clone)]
pub(crate) struct GuardedResolver {
    addresses: AddressPolicy,
}

impl GuardedResolver {
    pub(crate) fn new(addresses: AddressPolicy) -> Self {
        Self { addresses }
    }

    /// The addresses of `host` that may be connected to, at least one.
    pub(crate) async fn lookup(&self, host: &str) -> Result<Vec<SocketAddr>, LookupError> {
        // Port 0 stands for "the URL's own".
        let found: Vec<_> = tokio::net::lookup_host((host, 0)).await.map_err(LookupError::Unknown)?.collect();
        self.allowed(found)
    }

    fn allowed(&self, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, LookupError> {
        let allowed: Vec<_> = found.into_iter().filter(|found| self.addresses.allows(found.ip())).collect();
        if allowed.is_empty() { Err(LookupError::Refused(Refused::Address)) } else { Ok(allowed) }
    }
}

/// Why a name led nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    #[error("the host name could not be resolved")]
    Unknown(#[source] std::io::Error),
    #[error("the host name {0}")]
    Refused(Refused),
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let addresses = this.lookup(name.as_str()).await?;
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_addresses_the_private_ones_are_dropped_and_if_none_is_left_the_name_is_refused() {
        let resolver = GuardedResolver::new(AddressPolicy::default());
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let mixed = vec![at("10.0.0.1:0"), at("1.1.1.1:0"), at("[::1]:0")];
        assert_eq!(resolver.allowed(mixed).unwrap(), [at("1.1.1.1:0")]);
        let inside = vec![at("169.254.169.254:0"), at("[fd00::1]:0")];
        assert!(matches!(resolver.allowed(inside), Err(LookupError::Refused(Refused::Address))));
    }

    #[tokio::test]
    async fn localhost_is_refused_unless_its_network_is_listed() {
        let closed = GuardedResolver::new(AddressPolicy::default());
        assert!(matches!(closed.lookup("localhost").await, Err(LookupError::Refused(Refused::Address))));
        let networks = vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let open = GuardedResolver::new(AddressPolicy::new(networks));
        assert!(!open.lookup("localhost").await.unwrap().is_empty());
    }
}
