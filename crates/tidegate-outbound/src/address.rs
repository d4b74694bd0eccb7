//! Which addresses are on the public internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// IPv4 networks that are not the public internet, from IANA's special-purpose registry (RFC 6890 and successors).
const SPECIAL_V4: [(Ipv4Addr, u8); 17] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),        // this network
    (Ipv4Addr::new(10, 0, 0, 0), 8),       // private
    (Ipv4Addr::new(100, 64, 0, 0), 10),    // shared between a carrier and its customers
    (Ipv4Addr::new(127, 0, 0, 0), 8),      // loopback
    (Ipv4Addr::new(168, 63, 129, 16), 32), // public by number, but a cloud's host agent answers there
    (Ipv4Addr::new(169, 254, 0, 0), 16),   // link-local, and the metadata services of most clouds
    (Ipv4Addr::new(172, 16, 0, 0), 12),    // private
    (Ipv4Addr::new(192, 0, 0, 0), 24),     // protocol assignments
    (Ipv4Addr::new(192, 0, 2, 0), 24),     // documentation
    (Ipv4Addr::new(192, 31, 196, 0), 24),  // AS112
    (Ipv4Addr::new(192, 88, 99, 0), 24),   // 6to4 relays
    (Ipv4Addr::new(192, 168, 0, 0), 16),   // private
    (Ipv4Addr::new(198, 18, 0, 0), 15),    // benchmarking
    (Ipv4Addr::new(198, 51, 100, 0), 24),  // documentation
    (Ipv4Addr::new(203, 0, 113, 0), 24),   // documentation
    (Ipv4Addr::new(224, 0, 0, 0), 4),      // multicast
    (Ipv4Addr::new(240, 0, 0, 0), 4),      // reserved, and broadcast
];

/// The only IPv6 space from which public addresses are given out (RFC 4291, section 2.4). What lies outside of it
/// includes loopback, link-local, unique-local and multicast, and the forms that carry an IPv4 address: mapped
/// (::ffff:0:0/96), compatible (::/96) and NAT64 (64:ff9b::/96, 64:ff9b:1::/48).
const GLOBAL_UNICAST_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// Networks inside of it that are not the public internet.
const SPECIAL_V6: [(Ipv6Addr, u8); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23), // protocol assignments, Teredo (carries an IPv4 address)
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32), // documentation
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16), // 6to4 (carries an IPv4 address)
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20), // documentation
];

fn in_v4(address: Ipv4Addr, (network, bits): (Ipv4Addr, u8)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (32 - u32::from(bits)) == 0
}

fn in_v6(address: Ipv6Addr, (network, bits): (Ipv6Addr, u8)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (128 - u32::from(bits)) == 0
}

/// Whether an address is on the public internet. IPv6 forms that carry an IPv4 address are not: they are a way round
/// a check of IPv4 addresses, and nothing public is named by them.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !SPECIAL_V4.iter().any(|network| in_v4(v4, *network)),
        IpAddr::V6(v6) => in_v6(v6, GLOBAL_UNICAST_V6) && !SPECIAL_V6.iter().any(|network| in_v6(v6, *network)),
    }
}

/// Which addresses may be connected to.
#[derive(Debug, Clone, Default)]
pub struct AddressPolicy {
    allow_networks: Vec<IpNet>,
}

impl AddressPolicy {
    /// Public addresses, and those in `allow_networks`.
    pub fn new(allow_networks: Vec<IpNet>) -> Self {
        Self { allow_networks }
    }

    /// Whether `address` may be connected to. An IPv4 network does not allow the IPv6 forms of its addresses.
    pub fn allows(&self, address: IpAddr) -> bool {
        is_public(address) || self.allow_networks.iter().any(|network| network.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2a00:1450:4001:80b::200e",
            "2001:4860:4860::8888",
        ] {
            assert!(is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn both_ends_of_every_special_network_are_not() {
        for (network, bits) in SPECIAL_V4 {
            let last = Ipv4Addr::from_bits(network.to_bits() | u32::MAX.checked_shr(u32::from(bits)).unwrap_or(0));
            assert!(!is_public(network.into()) && !is_public(last.into()), "{network}/{bits}");
        }
        for (network, bits) in SPECIAL_V6 {
            let last = Ipv6Addr::from_bits(network.to_bits() | u128::MAX >> bits);
            assert!(!is_public(network.into()) && !is_public(last.into()), "{network}/{bits}");
        }
        for text in ["::", "::1", "fc00::1", "fdff::1", "fe80::1", "fec0::1", "ff02::1", "100::1", "5f00::1"] {
            assert!(!is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn an_ipv4_address_inside_an_ipv6_address_is_not_public_even_where_the_former_is() {
        for text in
            ["::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::8.8.8.8", "64:ff9b:1::808:808", "2002:808:808::1", "2001::1"]
        {
            assert!(!is_public(ip(text)), "{text}");
        }
    }

    #[test]
    fn only_a_listed_network_is_exempt() {
        let policy = AddressPolicy::new(vec!["127.0.0.0/8".parse().unwrap(), "fd00:1::/64".parse().unwrap()]);
        for text in ["127.0.0.1", "127.255.0.1", "fd00:1::9", "1.1.1.1"] {
            assert!(policy.allows(ip(text)), "{text}");
        }
        for text in ["10.0.0.1", "::1", "::ffff:127.0.0.1", "fd00:2::9", "169.254.169.254"] {
            assert!(!policy.allows(ip(text)), "{text}");
        }
    }
}
