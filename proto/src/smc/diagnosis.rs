//! The peer diagnosis codes of CLC Decline: one table of number, name and meaning.
//!
//! Numbers are those of Linux `net/smc/smc_clc.h`.
//! The handshake sends and stores them; [`crate::reason`] has the ones that a user is shown.

use crate::reason::Reason;

/// A diagnosis code as it stands in a Decline; codes outside the table are kept as they came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Diagnosis(pub u32);

macro_rules! diagnoses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl Diagnosis {
            $(#[doc = $text] pub const $name: Diagnosis = Diagnosis($code);)*

            /// Every code of the table, in the order of the numbers.
            pub const ALL: &'static [Diagnosis] = &[$(Diagnosis::$name,)*];

            /// What the code means, if it is in the table.
            pub const fn text(self) -> Option<&'static str> {
                match self.0 { $($code => Some($text),)* _ => None }
            }
        }
    };
}

diagnoses! {
    MEMORY = 0x0101_0000, "out of memory";
    TIMEOUT_CONFIRM_LINK = 0x0201_0000, "no answer to Confirm Link";
    TIMEOUT_ADD_LINK = 0x0202_0000, "no answer to Add Link";
    CONFIG = 0x0300_0000, "configuration error";
    NO_SMC = 0x0301_0000, "the peer did not offer SMC";
    IPSEC = 0x0302_0000, "IPsec is in use";
    NO_DEVICE = 0x0303_0000, "no SMC device";
    NO_SMCD_DEVICE = 0x0303_0001, "no SMC-D device";
    NO_SMCR_DEVICE = 0x0303_0002, "no SMC-R device";
    NO_ISMV2 = 0x0303_0003, "no ISMv2 support";
    NO_V2_EXT = 0x0303_0004, "no SMCv2 extension in the Proposal";
    NO_DV2_EXT = 0x0303_0005, "no SMC-Dv2 extension in the Proposal";
    NO_SEID = 0x0303_0006, "no system EID";
    NO_SMCD_V2_DEVICE = 0x0303_0007, "no SMC-Dv2 device";
    NO_UEID = 0x0303_0008, "no common user EID";
    RELEASE = 0x0303_0009, "no common release of SMCv2";
    MAX_CONNECTIONS = 0x0303_000a, "no common limit of connections per link group";
    MAX_LINKS = 0x0303_000b, "no common limit of links per link group";
    MODE_MISMATCH = 0x0304_0000, "SMC-R and SMC-D, or the version, do not fit the Proposal";
    EYECATCHER_MODE = 0x0305_0000, "the peer wants eyecatchers in the RMBE";
    OPTION = 0x0306_0000, "unsupported socket option (TCP Fast Open)";
    PREFIX = 0x0307_0000, "no common IP subnet";
    VLAN = 0x0308_0000, "the VLAN could not be determined";
    ISM_VLAN = 0x0309_0000, "the VLAN could not be used on the ISM device";
    NO_ACTIVE_LINK = 0x030a_0000, "no active link in the link group";
    NO_SUCH_LINK = 0x030b_0000, "the client does not know the link that the server named";
    VERSION_MISMATCH = 0x030c_0000, "the versions of Accept and Confirm differ";
    DMB_LIMIT = 0x030d_0000, "too many SMC-D buffers";
    NO_ROUTE = 0x030e_0000, "no route to the peer's RoCE address";
    DIRECT_MISMATCH = 0x030f_0000, "the ends disagree on whether a gateway lies between them";
    OUT_OF_SYNC = 0x0400_0000, "the ends disagree on whether this is first contact";
    PEER_DECLINED = 0x0500_0000, "the peer declined";
    INTERNAL = 0x0999_0000, "internal error";
    RTOKEN = 0x0999_0001, "the peer's RMB could not be entered";
    LINK_READY = 0x0999_0002, "the queue pair could not be made ready";
    REGISTER_BUFFER = 0x0999_0003, "the RMB could not be registered";
}

impl Diagnosis {
    /// The reason of this number in the table that users see, where it has one.
    pub const fn reason(self) -> Option<Reason> {
        Reason::from_code(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_and_have_texts() {
        for pair in Diagnosis::ALL.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{:08x} before {:08x}", pair[0].0, pair[1].0);
        }
        assert!(Diagnosis::ALL.iter().all(|d| d.text().is_some()));
        assert_eq!(Diagnosis(0x0303_0042).text(), None);
    }

    #[test]
    fn the_two_tables_have_the_same_codes() {
        for diagnosis in Diagnosis::ALL {
            assert!(diagnosis.reason().is_some(), "{:08x} has no sentence", diagnosis.0);
        }
        for reason in Reason::ALL.iter().filter(|r| r.code() >= 0x0100_0000) {
            assert!(Diagnosis(reason.code()).text().is_some(), "{}", reason.label());
        }
        assert_eq!(Diagnosis::NO_UEID.reason(), Some(Reason::SmcNoUeid));
    }
}
