//! Which addresses may be connected to. Pure.
//!
//! A name that someone else answers for can point anywhere: at this machine, at the neighbours, at the cloud's metadata
//! service. So the addresses are judged after the name was resolved, and the address that was judged is the one that
//! is connected to; a second answer of the name server is never asked for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where connections may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Anywhere.
    Anywhere,
    /// Only to addresses of the public Internet.
    Public,
    /// Only to this machine.
    Loopback,
}

impl Reach {
    /// What an address is, when it may not be connected to.
    pub(crate) fn refuses(self, address: IpAddr) -> Option<&'static str> {
        match self {
            Self::Anywhere => None,
            Self::Public => not_public(address),
            Self::Loopback => (!is_loopback(address)).then_some("an address of another machine"),
        }
    }
}

/// Whether an address means this machine.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// What an address is, unless it is one of the public Internet by IANA's registries of special addresses.
/// <https://www.iana.org/assignments/iana-ipv4-special-registry>, <https://www.iana.org/assignments/iana-ipv6-special-registry>
pub(crate) fn not_public(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => not_public_v4(address),
        IpAddr::V6(address) => not_public_v6(address),
    }
}

fn not_public_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "an address of this network (0.0.0.0/8)",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "a private address",
        (100, 64..=127, _) => "a shared address of a carrier (100.64.0.0/10)",
        (127, ..) => "a loopback address",
        (169, 254, _) => "a link-local address, such as that of a cloud's metadata service",
        (192, 0, 0) | (192, 88, 99) => "an address for protocols",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "an address for documentation",
        (198, 18..=19, _) => "an address for benchmarks",
        (224..=239, ..) => "a multicast address",
        (240.., ..) => "a reserved address",
        _ => return None,
    })
}

fn not_public_v6(address: Ipv6Addr) -> Option<&'static str> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        not_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b, c, d, e, f) {
        _ if address.is_loopback() => Some("a loopback address"),
        _ if address.is_unspecified() => Some("the unspecified address"),
        // IPv4 in IPv6 (mapped) and behind a translator (NAT64) is judged as IPv4.
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => embedded(g, h),
        // 6to4 carries the IPv4 address after its prefix.
        (0x2002, ..) => embedded(b, c).or(Some("an address for protocols (2002::/16)")),
        (0xfc00..=0xfdff, ..) => Some("a unique local address (fc00::/7)"),
        (0xfe80..=0xfebf, ..) => Some("a link-local address"),
        (0xff00.., ..) => Some("a multicast address"),
        (0x2001, 0..=0x01ff, ..) => Some("an address for protocols (2001::/23)"),
        (0x2001, 0x0db8, ..) | (0x3fff, 0..=0x0fff, ..) => Some("an address for documentation"),
        // Only 2000::/3 is given to the public Internet.
        (0x2000..=0x3fff, ..) => None,
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_public_internet_is_public() {
        let check = |address: &str, refused: Option<&str>| {
            let found = not_public(address.parse().unwrap());
            assert_eq!(found.is_some(), refused.is_some(), "{address}: {found:?}");
            if let (Some(found), Some(expected)) = (found, refused) {
                assert!(found.contains(expected), "{address}: {found}");
            }
        };
        for (address, what) in [
            ("0.0.0.0", "this network"),
            ("0.1.2.3", "this network"),
            ("10.0.0.1", "private"),
            ("100.64.0.1", "carrier"),
            ("100.127.255.255", "carrier"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.254", "loopback"),
            ("169.254.169.254", "metadata"),
            ("172.16.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.0.0.1", "protocols"),
            ("192.0.2.1", "documentation"),
            ("192.168.1.1", "private"),
            ("198.19.0.1", "benchmarks"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::7f00:1", "reserved"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:169.254.169.254", "metadata"),
            ("::ffff:10.1.2.3", "private"),
            ("64:ff9b::10.0.0.1", "private"),
            ("64:ff9b:1::1", "reserved"),
            ("100::1", "reserved"),
            ("2001::1", "protocols"),
            ("2001:db8::1", "documentation"),
            ("2002:7f00:1::", "loopback"),
            ("2002:808:808::", "protocols"),
            ("3fff::1", "documentation"),
            ("5f00::1", "reserved"),
            ("fc00::1", "unique local"),
            ("fd00:ec2::254", "unique local"),
            ("fe80::1", "link-local"),
            ("fec0::1", "reserved"),
            ("ff02::1", "multicast"),
        ] {
            check(address, Some(what));
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "198.20.0.1",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:4860:4860::8888",
            "2606:4700::1111",
        ] {
            check(address, None);
        }
    }

    #[test]
    fn loopback_means_this_machine_only() {
        let check = |address: &str, ok: bool| {
            assert_eq!(Reach::Loopback.refuses(address.parse().unwrap()).is_none(), ok, "{address}");
        };
        check("127.0.0.1", true);
        check("127.9.9.9", true);
        check("::1", true);
        check("::ffff:127.0.0.1", true);
        check("0.0.0.0", false);
        check("::", false);
        check("10.0.0.1", false);
        check("::ffff:10.0.0.1", false);
        assert_eq!(Reach::Anywhere.refuses("169.254.169.254".parse().unwrap()), None);
    }
}
